"""How evenly API keys that ask are served."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.access.key_figures import WINDOW_S, KeyFigures, RecentTokens, jain_index, keys_report


def key(name: str, recent: int, waiting: int = 0) -> KeyFigures:
    return KeyFigures(
        key_id=name,
        name=name,
        is_admin=False,
        models=None,
        limit_requests=None,
        limit_tokens=None,
        recent_tokens=recent,
        waiting_tokens=waiting,
    )


def test_keys_report__some_get_more__says_who_and_how_uneven_it_is() -> None:
    told = keys_report([key("a", 300), key("b", 100), key("idle", 0)])
    assert told.fair_share == 0.5
    assert told.jain_index == pytest.approx(400**2 / (2 * (300**2 + 100**2)))
    assert [(k.figures.name, k.share) for k in told.keys] == [("a", 0.75), ("b", 0.25), ("idle", None)]


def test_keys_report__one_waits_and_gets_nothing__counts() -> None:
    told = keys_report([key("a", 300), key("starved", 0, waiting=50)])
    assert (told.jain_index, told.fair_share) == (0.5, 0.5)
    assert told.keys[1].share == 0.0


def test_keys_report__nobody_asks__has_nothing_to_compare() -> None:
    told = keys_report([key("a", 0)])
    assert (told.jain_index, told.fair_share, told.keys[0].share) == (None, None, None)


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=20).filter(lambda amounts: sum(x * x for x in amounts) > 0))
def test_jain_index__any_amounts__is_between_one_nth_and_one(amounts: list[float]) -> None:
    found = jain_index(amounts)
    assert found is not None
    assert 1 / len(amounts) - 1e-9 <= found <= 1 + 1e-9


def test_recent_tokens__time_passes__are_those_of_the_window() -> None:
    recent = RecentTokens()
    for second in range(1000):
        recent.add(1, float(second))
    assert recent.total(999.0) == pytest.approx(WINDOW_S, abs=10)
    assert recent.total(999.0 + WINDOW_S / 2) == pytest.approx(WINDOW_S / 2, abs=10)
    assert recent.total(2000.0) == 0
