"""How many running sequences keep their TBT targets at a given pace."""

from collections.abc import Sequence

from pdmux_actor.scheduling.queues import ModelQueue

_MISSED_COUNTS = 0.1  # a sequence that has missed a target already, against one that has met all of its own
_MOST_TARGETS = 6  # distinct ones that are told apart: clients may set their own


class RunningTargets:
    """The targets of all running sequences of some models, weighted."""

    def __init__(self, decoding: Sequence[ModelQueue]) -> None:
        by_target: dict[float, float] = {}
        for queue in decoding:
            for target in queue.tbt_targets:
                weight = target.on_time + _MISSED_COUNTS * target.missed
                by_target[target.tbt_s] = by_target.get(target.tbt_s, 0.0) + weight
        self._weights = sorted(by_target.items())
        self._total = sum(by_target.values())

    def share_met(self, step_s: float) -> float:
        """F: the share of sequences whose target admits gaps of `step_s`."""
        met = 0.0
        for tbt_s, weight in self._weights:
            if tbt_s >= step_s:
                met += weight
        return met / self._total

    def tightest_from(self, step_s: float) -> float:
        """The tightest target that such gaps meet; infinite if there is none."""
        return next((tbt_s for tbt_s, _ in self._weights if tbt_s >= step_s), float("inf"))

    def weightiest(self) -> list[float]:
        """The targets that most sequences have, the tightest first."""
        if len(self._weights) <= _MOST_TARGETS:
            return [tbt_s for tbt_s, _ in self._weights]
        return sorted(tbt_s for tbt_s, _ in sorted(self._weights, key=lambda pair: -pair[1])[:_MOST_TARGETS])
