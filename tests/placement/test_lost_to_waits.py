"""What waits too long for its first token, against simple cases and simulated runs."""

import itertools
import random

import pytest

from placement.scaling.predicted_attainment import lost_to_waits


def test_lost__far_too_much_comes__is_what_cannot_be_served() -> None:
    assert lost_to_waits(2.0, 10.0, 5.0, 1) == pytest.approx(0.5, abs=1e-6)
    assert lost_to_waits(1e4, 1e4, 1e4, 1) == pytest.approx(1.0, abs=1e-3)


def test_lost__load_grows_through_the_capacity__grows_without_a_jump() -> None:
    losses = [lost_to_waits(0.9 + 0.002 * i, 4.0, 3.0, 3) for i in range(101)]

    assert losses == sorted(losses)
    assert max(after - before for before, after in itertools.pairwise(losses)) < 0.002


def test_lost__no_time_to_wait_or_no_load__all_or_nothing() -> None:
    assert lost_to_waits(0.5, 1.0, 0.0, 1) == 1.0
    assert lost_to_waits(0.0, 1.0, 1.0, 1) == 0.0


@pytest.mark.parametrize(("units", "busy"), [(1, 0.8), (3, 0.9), (3, 1.05)])
def test_lost__simulated_queue_that_gives_up_who_would_be_late__is_near(units: int, busy: float) -> None:
    """Jobs of 1 s come at random to one queue; one that could not start within 4 s is given up."""
    draw, free_s = random.Random(1), [0.0] * units
    now_s, lost, jobs = 0.0, 0, 200_000
    for _ in range(jobs):
        now_s += draw.expovariate(busy * units)
        first = min(range(units), key=free_s.__getitem__)
        starts_s = max(now_s, free_s[first])
        if starts_s - now_s > 4.0:
            lost += 1
        else:
            free_s[first] = starts_s + 1.0

    assert lost_to_waits(busy, 2.0 * units, 4.0, units) == pytest.approx(lost / jobs, rel=0.5, abs=0.001)
