"""Learns which targets the requests for a model ask for, from what gateways counted."""

import math
from collections.abc import Mapping, Sequence

from placement.target_mix import TargetMix, TargetShare
from router.admission.demand_report import ModelAsked, TargetCount

_MEMORY = 200.0  # requests
_FORGOTTEN = 1e-4  # a share that small is none


class TargetLearning:
    """One model's. Gateways tell targets in steps, whose number bounds what is kept."""

    def __init__(self, mix: TargetMix | None = None) -> None:
        self.mix = mix or TargetMix()
        self._ttft: dict[float, int] = {}
        self._tbt: dict[float, int] = {}

    def count(self, before: ModelAsked, now: ModelAsked) -> None:
        _add(self._ttft, before.ttft_targets, now.ttft_targets)
        _add(self._tbt, before.tbt_targets, now.tbt_targets)

    def average(self, requests: int) -> None:
        """Takes in what was counted of so many requests."""
        if requests:
            weight = 1 - math.exp(-requests / _MEMORY)
            self.mix = TargetMix(
                ttft=_averaged(self.mix.ttft, self._ttft, requests, weight),
                tbt=_averaged(self.mix.tbt, self._tbt, requests, weight),
            )
        self._ttft.clear()
        self._tbt.clear()


def _add(counts: dict[float, int], before: Sequence[TargetCount], now: Sequence[TargetCount]) -> None:
    known = {b.target_s: b.requests_total for b in before}
    for told in now:
        more = told.requests_total - known.get(told.target_s, 0)
        if more > 0:
            counts[told.target_s] = counts.get(told.target_s, 0) + more


def _averaged(
    shares: Sequence[TargetShare], counts: Mapping[float, int], requests: int, weight: float
) -> tuple[TargetShare, ...]:
    kept = {s.target_s: (1 - weight) * s.share for s in shares}
    for target_s, count in counts.items():
        kept[target_s] = kept.get(target_s, 0.0) + weight * min(1.0, count / requests)
    return tuple(TargetShare(target_s=t, share=s) for t, s in sorted(kept.items()) if s > _FORGOTTEN)
