"""Works out how many running sequences keep their TBT targets at a given pace."""

from collections.abc import Sequence

from pdmux_actor.scheduling.queues import ModelQueue

SAFE_SHARE, _HOPELESS_SHARE = 0.95, 1.25  # of a target
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

    def share_met(self, gap_s: float) -> float:
        """F: the share of sequences whose target admits gaps that are predicted to be of `gap_s`."""
        met = 0.0
        for tbt_s, weight in self._weights:
            met += weight * _chance(gap_s / tbt_s if tbt_s > 0 else _HOPELESS_SHARE)
        return met / self._total

    def weightiest(self) -> list[float]:
        """The targets that most sequences have, the tightest first."""
        if len(self._weights) <= _MOST_TARGETS:
            return [tbt_s for tbt_s, _ in self._weights]
        return sorted(tbt_s for tbt_s, _ in sorted(self._weights, key=lambda pair: -pair[1])[:_MOST_TARGETS])


def tightest_from(decoding: Sequence[ModelQueue], step_s: float) -> float:
    """The tightest target of running sequences that gaps of `step_s` meet, or else the one that they miss by least;
    infinite if there is none.
    """
    targets = {target.tbt_s for queue in decoding for target in queue.tbt_targets}
    return min((tbt_s for tbt_s in targets if tbt_s >= step_s), default=max(targets, default=float("inf")))


def _chance(share: float) -> float:
    """That a gap is within a target of which it is predicted to take this share.

    It falls from 1 at 95 % of the target to a half at the target, and to nothing at 125 %: worst cases are predicted,
    but one gap that is late after all makes all sequences late that wait for it.
    """
    if share <= SAFE_SHARE:
        return 1.0
    if share <= 1.0:
        return 1.0 - 0.5 * (share - SAFE_SHARE) / (1.0 - SAFE_SHARE)
    return max(0.0, 0.5 * (_HOPELESS_SHARE - share) / (_HOPELESS_SHARE - 1.0))
