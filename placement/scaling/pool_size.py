"""Follows what a pool is found to need, without thrash: it grows at once and shrinks by what it has long not needed,
within bounds and as readily as its rules say.
"""

from collections import deque
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


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSize:
    """Tells the next control loop what to go on with."""

    pool: str
    wanted: int
    changed_s: float


class PoolSize:
    """`wanted` nodes, always within the bounds. A pool shrinks to the most that was asked for within `cooldown_s`, and
    only when as much time has passed since the last change: whatever is asked, it cannot shrink, or turn round and
    shrink, more than once in that time.
    """

    def __init__(self, rules: ScalingRules, wanted: int, changed_s: float = float("-inf")) -> None:
        self.rules = rules
        self.wanted = min(max(wanted, rules.least_nodes), rules.most_nodes)
        self.changed_s = changed_s
        self._asked: deque[tuple[float, int]] = deque()
        self._since_s: float | None = None

    def under(self, rules: ScalingRules) -> None:
        """Goes on under other rules."""
        self.rules = rules
        self.wanted = min(max(self.wanted, rules.least_nodes), rules.most_nodes)

    def include(self, nodes: int) -> None:
        """Takes nodes that are there for wanted, as far as the bounds allow."""
        self.wanted = max(self.wanted, min(nodes, self.rules.most_nodes))

    def ask(self, nodes: int, floor: int, now_s: float) -> int:
        """Takes in how many nodes demand needs, and how many there must be anyway; returns how many are wanted."""
        rules = self.rules
        asked = min(max(nodes, floor, rules.least_nodes), rules.most_nodes)
        highest = self._highest_with(asked, now_s)
        assert self._since_s is not None, "it has just been asked"
        if asked > self.wanted:
            self._change(min(asked, self.wanted + rules.max_step), now_s)
        elif highest < self.wanted and now_s - max(self._since_s, self.changed_s) >= rules.cooldown_s:
            self._change(max(highest, self.wanted - rules.max_step), now_s)
        return self.wanted

    def kept(self, pool: str) -> KeptSize:
        return KeptSize(pool=pool, wanted=self.wanted, changed_s=self.changed_s)

    def _change(self, wanted: int, now_s: float) -> None:
        self.wanted, self.changed_s = wanted, now_s

    def _highest_with(self, asked: int, now_s: float) -> int:
        """Of what was asked within the cooldown; what a later and higher one outdoes is not kept."""
        self._since_s = now_s if self._since_s is None else self._since_s
        while self._asked and self._asked[-1][1] <= asked:
            self._asked.pop()
        self._asked.append((now_s, asked))
        while self._asked[0][0] < now_s - self.rules.cooldown_s:
            self._asked.popleft()
        return self._asked[0][1]
