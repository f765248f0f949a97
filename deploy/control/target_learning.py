"""Learns from what gateways counted which targets the requests for a model ask for, and watches what share of them is
in time.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from placement.demand import TargetMix, TargetShare
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


_FEWEST = 20  # requests of which a share says anything
_FALLEN, _RECOVERED = 0.9, 0.95


@dataclass(slots=True, eq=False)
class _Counted:
    requests: int = 0
    in_time: int = 0
    has_fallen: bool = False


class AttainmentWatch:
    def __init__(self) -> None:
        self._models: dict[str, _Counted] = {}

    def count(self, before: ModelAsked, now: ModelAsked) -> None:
        """Requests that were shed, or for which no unit came, were not in time."""
        counted = self._models.setdefault(now.model, _Counted())
        counted.requests += max(0, _ended(now) - _ended(before))
        counted.in_time += max(0, now.in_time_total - before.in_time_total)

    def fallen(self) -> tuple[str, ...]:
        """Tells once of each model that was in time and is no longer, in words."""
        told = []
        for model, counted in sorted(self._models.items()):
            if counted.requests < _FEWEST:
                continue
            share = counted.in_time / counted.requests
            if share < _FALLEN and not counted.has_fallen:
                told.append(f"{share:.0%} of the last {counted.requests} requests for {model} were in time")
            counted.has_fallen = share < (_RECOVERED if counted.has_fallen else _FALLEN)
            counted.requests = counted.in_time = 0
        return tuple(told)


def _ended(asked: ModelAsked) -> int:
    return asked.finished_total + asked.shed_total + asked.no_capacity_total
