"""A fixed partition: decode always has its share and prefill the rest, also when the other lane is idle.

The baseline of DuetServe Fig. 9 and MuxWise Fig. 19. A device of one SM cannot be split: the lanes take turns there.
"""

from collections.abc import Sequence

from pdmux_actor.scheduling.launch import fixed_decode_share
from pdmux_actor.scheduling.policies.base import Action, Decode, Mixed, StretchView, UnitState
from pdmux_actor.scheduling.policies.entry import PolicyEntry
from pdmux_actor.scheduling.policies.prefill_first import PrefillFirst
from pdmux_actor.scheduling.policies.whole_prefills import SplitLanes


class StaticSplit:
    target_aware = False
    sees_batches_only = True

    def __init__(self) -> None:
        self._lanes = SplitLanes()
        self._undivided = PrefillFirst()

    def choose(self, state: UnitState, now_s: float) -> Sequence[Action]:
        decode_sms = fixed_decode_share(state.device, state.settings.static_decode_share)
        return self._undivided.choose(state, now_s) if decode_sms is None else self._lanes.act(state, decode_sms)

    def go_on(self, view: StretchView) -> Decode | Mixed:
        return view.last  # the same model on the same share


POLICY = PolicyEntry(
    name="static_split",
    rule="a fixed partition, idle or not",
    source="DuetServe Fig. 9 baseline",
    make=StaticSplit,
)
