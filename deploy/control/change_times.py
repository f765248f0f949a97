"""Measures how long places are without a model from one turn to the next."""

from collections.abc import Collection, Iterable

from deploy.control.usable_units import Fleet
from pdmux_actor.lease import ModelPhase
from placement.plan import Plan

_SMOOTHING = 0.3


class ChangeTimes:
    """Counts from when nothing is left of those that gave way until who has their place is ready: leases, the load
    and what a busy machine adds to both. `mean_s` is of the last few, of whatever models: each has one in every round;
    0 before the first. A download is none of it: others are served meanwhile.
    """

    def __init__(self) -> None:
        self.mean_s = 0.0
        self._since_s: dict[str, float] = {}

    def begin(self, models: Iterable[str], now_s: float) -> None:
        """These have been given places."""
        self._since_s |= dict.fromkeys(models, now_s)

    def look(self, fleet: Fleet, goal: Plan, leaving: Collection[str], now_s: float) -> None:
        """`leaving` models have given way; `goal` is where those that were given places are, or were."""
        for model, since_s in tuple(self._since_s.items()):
            homes = goal.units_of(model)
            phases = {fleet.phase(home, model) for home in homes}
            if not homes or ModelPhase.FAILED in phases:
                del self._since_s[model]
            elif ModelPhase.READY in phases:
                del self._since_s[model]
                took_s = now_s - since_s
                self.mean_s += (took_s - self.mean_s) * (_SMOOTHING if self.mean_s else 1.0)
            elif any(not fleet.lingering(h).isdisjoint(leaving) or fleet.downloads(h, model) for h in homes):
                self._since_s[model] = now_s
