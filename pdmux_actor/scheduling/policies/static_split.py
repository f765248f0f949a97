"""A fixed partition: decode always has its share and prefill the rest, also when the other lane is idle.

The baseline of DuetServe Fig. 9 and MuxWise Fig. 19. A device of one SM cannot be split: the lanes take turns there.
"""

from collections.abc import Sequence

from pdmux_actor.scheduling.partition import fixed_decode_share
from pdmux_actor.scheduling.policies.base import Action, Decode, UnitState
from pdmux_actor.scheduling.policies.entry import PolicyEntry
from pdmux_actor.scheduling.policies.prefill_first import PrefillFirst
from pdmux_actor.scheduling.policies.whole_prefills import WholePrefills
from pdmux_actor.scheduling.round_robin import RoundRobin


class StaticSplit:
    target_aware = False

    def __init__(self) -> None:
        self._prefills = WholePrefills()
        self._decode_turn = RoundRobin()
        self._undivided = PrefillFirst()

    def choose(self, state: UnitState, now_s: float) -> Sequence[Action]:
        decode_sms = fixed_decode_share(state.device, state.settings.static_decode_share)
        if decode_sms is None:
            return self._undivided.choose(state, now_s)
        prefill_sms = state.total_sms - decode_sms
        actions: list[Action] = []
        # A launch of another policy may still hold more than its share: wait for its end.
        if not state.decode_lane.busy and state.prefill_lane.sms <= prefill_sms:
            model = self._decode_turn.take(q.model for q in state.decoding())
            actions += () if model is None else (Decode(model, decode_sms),)
        if not state.prefill_lane.busy and state.decode_lane.sms <= decode_sms:
            actions += self._prefills.act(state, prefill_sms)
        return actions


POLICY = PolicyEntry(
    name="static_split",
    rule="a fixed partition, idle or not",
    source="DuetServe Fig. 9 baseline",
    make=StaticSplit,
)
