"""Reads what tells of too few nodes before requests are late: what waits, and what decode has left."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from placement.problem import PlacementModel

_FEW_WAITING = 2.0  # requests that may wait whatever comes: of seldom ones every one would be news
_IDLES = 0.2  # of a lane that has work: then it is not nodes that lack
_CLEARED_S = 15.0  # so soon a queue that is too long shall be gone once nodes are there


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSignal:
    """Counts what waits for one model: `waiting` requests have no first token, of them `held` no unit either;
    `queued_tokens` of prompts are in the queues of units.
    """

    waiting: int = 0
    held: int = 0
    queued_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadingSignals:
    """`decode_headroom`: the least share of a TBT target that a unit's steps leave, None when nothing decodes.
    `bubble_share`: the largest of a unit's prefill lane that idled although it had work.
    """

    queues: Mapping[str, QueueSignal] = field(default_factory=dict)
    decode_headroom: float | None = None
    bubble_share: float = 0.0

    @property
    def queued_tokens(self) -> int:
        return sum(q.queued_tokens for q in self.queues.values())

    @property
    def held(self) -> int:
        return sum(q.held for q in self.queues.values())

    @property
    def has_slack(self) -> bool:
        """Decode is well within its targets and nobody waits for a unit."""
        return not self.held and (self.decode_headroom is None or self.decode_headroom >= 0.1)

    def excess(self, model: PlacementModel) -> float:
        """Returns how many requests wait beyond those that come within the target of a first token (Little): as many
        of them will be late.
        """
        queue = self.queues.get(model.model)
        if queue is None or model.target is None:
            return 0.0
        return max(0.0, queue.waiting - _FEW_WAITING - model.demand.rate_per_s * model.target.ttft_s)

    def pressed(self, models: Sequence[PlacementModel]) -> tuple[PlacementModel, ...]:
        """Returns the models with what waits in excess as demand beside what comes."""
        return tuple(m.at_rate(m.demand.rate_per_s + self.excess(m) / _CLEARED_S) for m in models)

    def in_words(self) -> str:
        parts = [f"{self.queued_tokens} prompt tokens queued"] if self.queued_tokens else []
        parts += [f"{self.held} requests held"] if self.held else []
        if self.decode_headroom is not None and self.decode_headroom < 0:
            parts.append("decode misses its target")
        if self.bubble_share > _IDLES:
            parts.append(f"prefill idles {self.bubble_share:.0%} of its time beside work")
        return ", ".join(parts)
