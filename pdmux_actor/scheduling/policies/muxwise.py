"""MuxWise as published (ASPLOS'26, §3.4): decode gets just enough SMs, prefill the rest, layer by layer.

The paper serves one model; with several, models take turns on either lane.
"""

from collections.abc import Sequence

from pdmux_actor.scheduling.policies.base import Action, Decode, Mixed, StretchView, UnitState
from pdmux_actor.scheduling.policies.entry import PolicyEntry
from pdmux_actor.scheduling.policies.side_by_side import SideBySide


class MuxWise:
    target_aware = False
    sees_batches_only = True

    def __init__(self) -> None:
        self._lanes = SideBySide()

    def choose(self, state: UnitState, now_s: float) -> Sequence[Action]:
        return self._lanes.act(state, self._lanes.next_prefill(state), now_s)

    def go_on(self, view: StretchView) -> Decode | Mixed:
        return view.last  # the same model on the same share


POLICY = PolicyEntry(
    name="muxwise",
    rule="decode gets the least share whose worst-case latency meets the tightest TBT target, prefill the rest, in "
    "slices of N_PL = ceil(T_d N_T / T_P) layers; a prompt that would miss its TTFT preempts a long prefill once, "
    "if that one keeps its own",
    source="MuxWise §3.4",
    make=MuxWise,
)
