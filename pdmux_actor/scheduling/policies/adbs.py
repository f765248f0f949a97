"""ADBS as published (MuxServe, Algorithm 3): prefills of the models in turn, decodes fill what is left.

It knows no latency targets: decode has a fixed share while a prefill runs (`static_decode_share`). As long as resources
are left, the inner loop takes the next model's decode, which runs beside the others on a part of that share. How many
parts there are stands for the paper's profile of the SMs that a model needs (Algorithm 2): as many as make the decode
cycle shortest, up to `decode_lanes` (decode_lanes.py). Unlike the released code, a prefill that waits for token blocks
does not hold decodes up: they are what frees the blocks.
"""

from collections.abc import Sequence

from pdmux_actor.scheduling.launch import fixed_decode_share
from pdmux_actor.scheduling.policies.base import Action, Decode, Mixed, RoundRobin, StretchView, UnitState
from pdmux_actor.scheduling.policies.decode_lanes import decodes_at_once
from pdmux_actor.scheduling.policies.entry import PolicyEntry
from pdmux_actor.scheduling.policies.whole_prefills import WholePrefills


class Adbs:
    target_aware = False
    sees_batches_only = True

    def __init__(self) -> None:
        self._prefills = WholePrefills()
        self._decode_turn = RoundRobin()

    def choose(self, state: UnitState, now_s: float) -> Sequence[Action]:
        wants_prefill = state.batch is not None or bool(state.prefillable_models())
        prefill_sms, decode_sms = self._shares(state, wants_prefill)
        actions: list[Action] = []
        if not state.prefill_lane.busy and prefill_sms > 0:
            actions += self._prefills.act(state, prefill_sms)
        lane_taken = state.prefill_lane.sms or (prefill_sms if actions else 0)
        return [*actions, *self._decodes(state, min(decode_sms, state.total_sms - lane_taken))]

    def go_on(self, view: StretchView) -> Decode | Mixed:
        return view.last  # the same model on the same share

    def _decodes(self, state: UnitState, decode_sms: int) -> Sequence[Decode]:
        decoding = state.decoding()
        return decodes_at_once(state, decoding, decode_sms, self._decode_turn) if decoding and decode_sms > 0 else ()

    def _shares(self, state: UnitState, wants_prefill: bool) -> tuple[int, int]:
        """SMs for (prefill, decode)."""
        total = state.total_sms
        if not wants_prefill:
            return 0, total - state.prefill_lane.sms
        if not state.decoding():
            return (total, 0) if state.idle else (0, 0)
        share = fixed_decode_share(state.device, state.settings.static_decode_share)
        if share is None:  # a single SM: prefill first
            return (total, 0) if state.idle else (0, 0)
        return (total - (state.decode_lane.sms or share), share)


POLICY = PolicyEntry(
    name="adbs",
    rule="prefills of the models in turn, decodes of several models at once fill what is left (`engine.decode_lanes`); "
    "no latency targets",
    source="MuxServe, Algorithm 3",
    make=Adbs,
)
