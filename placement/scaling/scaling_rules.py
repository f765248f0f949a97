"""Defines within which bounds, and how readily, a pool's number of nodes changes."""

from collections.abc import Sequence
from dataclasses import dataclass

from placement.scaling.seasonal_forecast import Season

_DAY_S = 86400.0
_THURSDAY = 3  # the first day of Unix time; Monday is 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledFloor:
    """Keeps at least `nodes` from `from_s` to `to_s` after midnight UTC, on days that begin on `days` (Monday is 0). A
    `to_s` that is not after `from_s` is on the next day.
    """

    nodes: int
    from_s: float
    to_s: float
    days: frozenset[int] = frozenset(range(7))

    def touches(self, unix_s: float, ahead_s: float) -> bool:
        """Says whether it holds now or at some time until `ahead_s` from now."""
        today = int(unix_s // _DAY_S)
        length_s = self.to_s - self.from_s + (0.0 if self.to_s > self.from_s else _DAY_S)
        for day in range(today - 1, today + 2 + int(ahead_s // _DAY_S)):
            begins_s = day * _DAY_S + self.from_s
            is_on = (day + _THURSDAY) % 7 in self.days
            if is_on and begins_s <= unix_s + ahead_s and unix_s < begins_s + length_s:
                return True
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRules:
    """`cooldown_s`: a pool shrinks only by what it has not needed for so long, and not sooner after another change.
    `max_step`: nodes that one change may add or take. `provision_s`: what a node takes to come, until that is
    measured. `shadow`: what would be done is only told. `forecast`: what is known of a season, None where demand is not
    taken to repeat.
    """

    least_nodes: int
    most_nodes: int
    target_attainment: float = 0.99
    cooldown_s: float = 300.0
    max_step: int = 4
    cost_per_hour: float = 1.0
    provision_s: float = 120.0
    shadow: bool = False
    schedule: Sequence[ScheduledFloor] = ()
    forecast: Season | None = None

    @property
    def is_elastic(self) -> bool:
        return self.most_nodes > self.least_nodes

    def floor(self, unix_s: float, lead_s: float) -> int:
        """Returns how many nodes there must be by the time at which one that is asked for now would be there."""
        scheduled = [s.nodes for s in self.schedule if s.touches(unix_s, lead_s)]
        return min(self.most_nodes, max([self.least_nodes, *scheduled]))
