"""Reads from what units and gateways report what tells of too few nodes early."""

from collections import Counter
from collections.abc import Iterable, Mapping

from pdmux_actor.lease import UnitReport
from placement.scaling.leading_signals import LeadingSignals, QueueSignal
from router.admission.demand_report import ModelAsked


def signals_of(reports: Iterable[UnitReport], asked: Mapping[str, ModelAsked]) -> LeadingSignals:
    """`asked` sums what gateways count of each model."""
    loads = [r.load for r in reports if r.load is not None]
    queued: Counter[str] = Counter()
    for load in loads:
        for model in load.models:
            queued[model.model] += model.waiting_tokens
    return LeadingSignals(
        queues={
            name: QueueSignal(waiting=counted.waiting, held=counted.held, queued_tokens=queued[name])
            for name, counted in asked.items()
        },
        decode_headroom=min((x.decode_headroom for x in loads if x.decode_headroom is not None), default=None),
        bubble_share=max((x.prefill_bubble_share for x in loads), default=0.0),
    )


class AttainmentDelta:
    """Tells what ended since the last look, and what of it was in time."""

    def __init__(self) -> None:
        self._before: Mapping[str, tuple[int, int]] | None = None

    def since(self, asked: Mapping[str, ModelAsked]) -> tuple[int, int]:
        """A gateway that is new or gone makes totals jump: what falls counts for nothing."""
        now = {
            name: (a.finished_total + a.shed_total + a.no_capacity_total, a.in_time_total) for name, a in asked.items()
        }
        before, self._before = self._before, now
        if before is None:
            return 0, 0
        ended = in_time = 0
        for name, (total, good) in now.items():
            was_total, was_good = before.get(name, (total, good))
            if 0 <= good - was_good <= total - was_total:
                ended, in_time = ended + total - was_total, in_time + good - was_good
        return ended, in_time
