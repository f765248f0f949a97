"""Follows what a pool is found to need, without thrash: it grows at once and shrinks by what it has long not needed."""

from collections import deque
from dataclasses import dataclass

from placement.scaling.scaling_rules import ScalingRules


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
