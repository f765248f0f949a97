"""When a request counts as in time."""

import pytest

from traces.timeliness import SloTarget, is_in_time

TARGET = SloTarget(ttft_s=1.0, tbt_s=0.1)


@pytest.mark.parametrize(
    ("ttft_s", "gaps_s", "expected"),
    [
        (1.0, [0.1] * 3, True),
        (0.5, [], True),
        (1.01, [0.05] * 3, False),
        (None, [], False),
        (0.5, [0.11, 0.01, 0.01], False),  # the second token counts as any other
        (0.5, [0.01] * 199 + [0.11], False),  # 99.5 % of the gaps are not all of them
    ],
)
def test_is_in_time__first_token_and_every_gap__decide(
    ttft_s: float | None, gaps_s: list[float], expected: bool
) -> None:
    assert is_in_time(ttft_s, gaps_s, TARGET) is expected


def test_is_in_time__no_targets__whatever_comes_is_in_time() -> None:
    assert is_in_time(1e6, [1e6], SloTarget(ttft_s=float("inf"), tbt_s=float("inf")))
