"""One model at a time, first come first served: how AlpaServe multiplexes models (OSDI'23), with continuous batching.

The model of the oldest unanswered request has the device; prefills of that model come before its decodes.
"""

from collections.abc import Sequence

from pdmux_actor.scheduling.policies.base import (
    Action,
    ContinuePrefill,
    Decode,
    Mixed,
    StartPrefill,
    StretchView,
    UnitState,
)
from pdmux_actor.scheduling.policies.entry import PolicyEntry
from pdmux_actor.scheduling.queues import ModelQueue


class Temporal:
    target_aware = False

    def choose(self, state: UnitState, now_s: float) -> Sequence[Action]:
        if not state.idle:
            return ()
        if state.batch is not None:
            return (ContinuePrefill(state.batch.layers_left, state.total_sms),)
        able = [q for q in state.queues.values() if q.running or state.prefillable(q)]
        if not able:
            return ()
        queue = min(able, key=lambda q: (_oldest_arrival_s(q), q.model))
        if state.prefillable(queue):
            return (StartPrefill(queue.model, queue.info.spec.num_layers, state.total_sms),)
        return (Decode(queue.model, state.total_sms),)

    def go_on(self, view: StretchView) -> Decode | Mixed:
        return view.last  # the same model on the same share


POLICY = PolicyEntry(
    name="temporal",
    rule="one model at a time, oldest request first",
    source="AlpaServe-like baseline",
    make=Temporal,
)


def _oldest_arrival_s(queue: ModelQueue) -> float:
    return min((s.arrival_s for s in queue.sequences()), default=float("inf"))
