"""Decides when a request is in time: the one definition behind every figure that counts requests."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SloTarget:
    """Time to first token, and each gap between tokens."""

    ttft_s: float
    tbt_s: float


def is_in_time(ttft_s: float | None, gaps_s: Sequence[float], target: SloTarget) -> bool:
    """Its first token came within the TTFT target and every gap, the one before the second token too, within the TBT's.

    Of a request that ended as it should; any other is not in time, whatever its tokens did.

    >>> target = SloTarget(ttft_s=1.0, tbt_s=0.1)
    >>> is_in_time(1.0, [0.1, 0.1], target), is_in_time(0.2, [0.11], target), is_in_time(None, [], target)
    (True, False, False)
    """
    return ttft_s is not None and ttft_s <= target.ttft_s and max(gaps_s, default=0.0) <= target.tbt_s
