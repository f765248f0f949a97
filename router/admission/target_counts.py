"""Counts which targets requests ask for where they are not their model's own, in steps of ten percent."""

import math
from dataclasses import dataclass

from pdmux_actor.messages import Slo

_STEP = 1.1
_LEAST_S, _MOST_S = 1e-3, 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCount:
    """`target_s` is what the requests asked for or up to a tenth less."""

    target_s: float
    requests_total: int


class TargetCounts:
    """Holds 160 counts of each kind at the most, whatever clients write."""

    def __init__(self) -> None:
        self._ttft: dict[int, int] = {}
        self._tbt: dict[int, int] = {}

    def asked(self, target: Slo, own: Slo) -> None:
        if target.ttft_s != own.ttft_s:
            _count(self._ttft, target.ttft_s)
        if target.tbt_s != own.tbt_s:
            _count(self._tbt, target.tbt_s)

    def ttft(self) -> tuple[TargetCount, ...]:
        return _told(self._ttft)

    def tbt(self) -> tuple[TargetCount, ...]:
        return _told(self._tbt)


def _count(counts: dict[int, int], target_s: float) -> None:
    step = math.floor(math.log(min(max(target_s, _LEAST_S), _MOST_S)) / math.log(_STEP) + 1e-9)
    counts[step] = counts.get(step, 0) + 1


def _told(counts: dict[int, int]) -> tuple[TargetCount, ...]:
    return tuple(TargetCount(target_s=_STEP**step, requests_total=n) for step, n in sorted(counts.items()))
