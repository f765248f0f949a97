"""Whole prefills before decode, one launch at a time: the default of SGLang and vLLM 0."""

from collections.abc import Sequence

from pdmux_actor.scheduling.policies.base import Action, ContinuePrefill, Decode, StartPrefill, UnitState
from pdmux_actor.scheduling.rotation import Rotation


class PrefillFirst:
    name = "prefill_first"

    def __init__(self) -> None:
        self._prefill_turn = Rotation()
        self._decode_turn = Rotation()

    def choose(self, state: UnitState, now_s: float) -> Sequence[Action]:
        if not state.idle:
            return ()
        sms = state.device.num_sms
        if state.batch is not None:
            return (ContinuePrefill(state.batch.layers_left, sms),)
        model = self._prefill_turn.take(q.model for q in state.queues.values() if state.prefillable(q))
        if model is not None:
            return (StartPrefill(model, state.queues[model].info.spec.num_layers, sms),)
        model = self._decode_turn.take(q.model for q in state.queues.values() if q.running)
        return () if model is None else (Decode(model, sms),)
