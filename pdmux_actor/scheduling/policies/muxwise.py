"""MuxWise as published (ASPLOS'26, §3.4): decode gets just enough SMs, prefill the rest, layer by layer.

The paper serves one model; with several, models take turns on either lane.
"""

from collections.abc import Sequence

from pdmux_actor.scheduling.policies.base import Action, UnitState
from pdmux_actor.scheduling.policies.side_by_side import SideBySide


class MuxWise:
    name = "muxwise"
    target_aware = False

    def __init__(self) -> None:
        self._lanes = SideBySide()

    def choose(self, state: UnitState, now_s: float) -> Sequence[Action]:
        return self._lanes.act(state, self._lanes.next_prefill(state), now_s)
