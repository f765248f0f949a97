"""Decode first, prompt chunks fill a token budget (Sarathi-Serve, arXiv:2403.02310)."""

from collections.abc import Sequence

from pdmux_actor.scheduling.policies.base import (
    Action,
    ContinuePrefill,
    Decode,
    Mixed,
    RoundRobin,
    StretchView,
    UnitState,
)
from pdmux_actor.scheduling.policies.entry import PolicyEntry


class ChunkedPrefill:
    target_aware = False

    def __init__(self) -> None:
        self._turn = RoundRobin()

    def choose(self, state: UnitState, now_s: float) -> Sequence[Action]:
        if not state.idle:
            return ()
        sms = state.device.num_sms
        if state.batch is not None:  # left over from another policy
            return (ContinuePrefill(state.batch.layers_left, sms),)
        model = self._turn.take(q.model for q in state.queues.values() if q.running or state.prefillable(q))
        return () if model is None else (Mixed(model, state.settings.chunk_budget_tokens, sms),)

    def go_on(self, view: StretchView) -> Decode | Mixed:
        return view.last  # the same model on the same share


POLICY = PolicyEntry(
    name="chunked_prefill",
    rule="decode first, prompt chunks fill a token budget",
    source="Sarathi-Serve",
    make=ChunkedPrefill,
    fuses=True,
)
