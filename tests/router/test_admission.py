import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.admission import Admit, CompletionRate, Hold, Shed, admit, retry_after_s


def decide(*, queued: int, ready: bool = True, rate_per_s: float = 1.0):
    return admit(queued=queued, max_queued=10, completions_per_s=rate_per_s, ready=ready, now_s=100.0, hold_s=30.0)


def test_admit__room_and_ready__admits() -> None:
    assert decide(queued=9) == Admit()


def test_admit__room_but_no_unit__holds_until_the_deadline() -> None:
    assert decide(queued=0, ready=False) == Hold(130.0)


def test_admit__queue_full__sheds_even_without_unit() -> None:
    assert decide(queued=10, ready=False) == Shed(5)
    assert decide(queued=10, rate_per_s=0.0) == Shed(5)
    assert decide(queued=10, rate_per_s=0.5) == Shed(10)


@given(queued=st.integers(0, 10**6), max_queued=st.integers(0, 10**6), rate=st.floats(0, 1e6, allow_subnormal=True))
def test_retry_after__any_state__is_a_whole_number_sdks_accept(queued: int, max_queued: int, rate: float) -> None:
    assert 1 <= retry_after_s(queued=queued, max_queued=max_queued, completions_per_s=rate) <= 120


@given(st.floats(0.01, 100), st.floats(0.01, 100))
def test_retry_after__faster_fleet__is_not_longer(one: float, other: float) -> None:
    slow, fast = sorted((one, other))
    after_slow, after_fast = (retry_after_s(queued=50, max_queued=50, completions_per_s=r) for r in (slow, fast))
    assert after_fast <= after_slow


@pytest.mark.parametrize("per_s", [0.5, 2.0, 20.0])
def test_rate__steady_completions__is_found_soon_and_kept(per_s: float) -> None:
    rate = CompletionRate()
    for i in range(int(per_s * 200)):
        rate.record(i / per_s)
        if i / per_s > 20:
            assert rate.per_s(i / per_s) == pytest.approx(per_s, rel=0.15)


def test_rate__nothing_completes_any_more__falls() -> None:
    rate = CompletionRate()
    assert rate.per_s(5.0) == 0.0
    for i in range(100):
        rate.record(i * 0.1)
    assert rate.per_s(300.0) < 0.01
