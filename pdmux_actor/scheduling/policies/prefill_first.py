"""Whole prefills before decode, one launch at a time: the default of SGLang and vLLM 0."""

from collections.abc import Sequence

from pdmux_actor.scheduling.policies.base import Action, Decode, Mixed, RoundRobin, StretchView, UnitState
from pdmux_actor.scheduling.policies.entry import PolicyEntry
from pdmux_actor.scheduling.policies.whole_prefills import WholePrefills


class PrefillFirst:
    target_aware = False
    sees_batches_only = True

    def __init__(self) -> None:
        self._prefills = WholePrefills()
        self._decode_turn = RoundRobin()

    def choose(self, state: UnitState, now_s: float) -> Sequence[Action]:
        if not state.idle:
            return ()
        sms = state.total_sms
        prefill = self._prefills.act(state, sms)
        if prefill:
            return prefill
        model = self._decode_turn.take(q.model for q in state.decoding())
        return () if model is None else (Decode(model, sms),)

    def go_on(self, view: StretchView) -> Decode | Mixed:
        return view.last  # the same model on the same share


POLICY = PolicyEntry(
    name="prefill_first",
    rule="whole prefills before decode",
    source="the default of SGLang and vLLM 0",
    make=PrefillFirst,
)
