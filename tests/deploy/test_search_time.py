"""A planner's answer comes within the budget, whatever follows the search."""

import pytest

from deploy.planning.planner_program import SearchTime


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def answered_after_s(time: SearchTime, clock: Clock, *, follows_s: float, finds_all_after_s: float = 60.0) -> float:
    """Looks every 10 ms, and then takes `follows_s`."""
    started_s = clock.now_s
    time.begin(1.0)
    while not time.is_up() and clock.now_s - started_s < finds_all_after_s:
        clock.now_s += 0.01
    clock.now_s += follows_s
    time.end()
    return clock.now_s - started_s


def test_search_time__large_fleet__keeps_the_budget_from_the_second_answer_on() -> None:
    clock = Clock()
    time = SearchTime(clock)

    took_s = [answered_after_s(time, clock, follows_s=0.3) for _ in range(4)]

    assert took_s[0] == pytest.approx(1.15, abs=0.02)
    assert took_s[1:] == [pytest.approx(1.0, abs=0.02)] * 3


def test_search_time__what_follows_takes_longer_than_the_budget__half_of_it_is_for_searching() -> None:
    clock = Clock()
    time = SearchTime(clock)
    answered_after_s(time, clock, follows_s=3.0)

    assert answered_after_s(time, clock, follows_s=0.0) == pytest.approx(0.5, abs=0.02)
    assert answered_after_s(time, clock, follows_s=0.0) == pytest.approx(0.85, abs=0.02), "the fleet has shrunk"


def test_search_time__search_ends_by_itself__what_was_known_stays() -> None:
    clock = Clock()
    time = SearchTime(clock)
    answered_after_s(time, clock, follows_s=0.3)
    answered_after_s(time, clock, follows_s=0.0, finds_all_after_s=0.1)

    assert answered_after_s(time, clock, follows_s=0.3) == pytest.approx(1.0, abs=0.02)
