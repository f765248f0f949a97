import itertools

from pdmux_actor.serving.quiet_pace import QuietPace


def asked_s(states: list[object], *, period_s: float = 0.5) -> list[float]:
    """When it asks, looking every `period_s` at the next state."""
    pace, asked = QuietPace(busy_s=0.5, quiet_s=2.0), []
    for number, state in enumerate(states):
        now_s = number * period_s
        pace.note("state", state, now_s)
        if pace.is_due(now_s + 1e-6):  # a moment later, as clocks are
            asked.append(now_s)
    return asked


def test_quiet_pace__nothing_happens__asks_every_quiet_period() -> None:
    asked = asked_s(["same"] * 100)

    assert asked[:20] == [number * 0.5 for number in range(20)], "the first ten seconds as before"
    assert {after - before for before, after in itertools.pairwise(asked[21:])} == {2.0}


def test_quiet_pace__something_changes_every_time__asks_every_time() -> None:
    assert asked_s(list(range(100))) == [number * 0.5 for number in range(100)]


def test_quiet_pace__change_after_long_quiet__is_told_at_that_look() -> None:
    quiet = ["same"] * 61  # the last asked at 30 s and less than two seconds before the change

    asked = asked_s([*quiet, "same", "other", "other"])

    assert 31.0 in asked
    assert 31.5 in asked, "and from then on as often as one looks"
