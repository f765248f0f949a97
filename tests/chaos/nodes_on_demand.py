"""Adds and removes raylets for one pool as an autoscaler of nodes does: as many as the pool wants, late; none goes on
which a unit runs.
"""

import asyncio
import time
from typing import Any

from ray_nodes import RayNode, RayNodes

_IDLE_S = 3.0
_COMES_AFTER_S = 3.0


class NodesOnDemand:
    """Tell it, again and again, what the fleet says of the pool. A raylet that does not start, on a busy machine, is
    started anew.
    """

    def __init__(self, nodes: RayNodes, *, at_start: int) -> None:
        self._nodes = nodes
        self._there: dict[RayNode, str | None] = {}  # with Ray's id, once it is known
        self._numbers = 0
        self._missed_s: float | None = None
        self._idle_s: dict[RayNode, float] = {}
        for _ in range(at_start):
            self._add().wait_until_started()

    @property
    def count(self) -> int:
        return len(self._there)

    def of(self, unit: Any) -> RayNode:
        """The one that a unit is on."""
        (found,) = [node for node in self._there if node.node_id == unit["report"]["node"]]
        return found

    def give_up(self, node: RayNode) -> None:
        """It counts no more: another one comes in its place."""
        del self._there[node]

    def kill(self, node: RayNode) -> None:
        """As when the power goes."""
        self.give_up(node)
        node.kill()

    async def follow(self, pool: Any, units: list[Any]) -> None:
        self._there = {node: node_id for node, node_id in self._there.items() if node.is_there()}
        self._there |= {n: n.node_id for n, known in self._there.items() if known is None and n.has_started}
        now_s = time.monotonic()
        self._add_if_missed(pool["wanted"], now_s)
        used = {unit["report"]["node"] for unit in units}
        idle = [node for node, node_id in self._there.items() if node_id is not None and node_id not in used]
        self._idle_s = {node: self._idle_s.get(node, now_s) for node in idle}
        for node, since_s in self._idle_s.items():
            if self.count > pool["wanted"] and now_s - since_s > _IDLE_S:
                del self._there[node]
                await asyncio.to_thread(node.kill)

    def _add_if_missed(self, wanted: int, now_s: float) -> None:
        """One after the other: two that start at once disturb each other."""
        if wanted <= self.count or None in self._there.values():
            self._missed_s = None
        elif self._missed_s is None:
            self._missed_s = now_s
        elif now_s - self._missed_s > _COMES_AFTER_S:
            self._missed_s = None
            self._add()

    def _add(self) -> RayNode:
        node = self._nodes.add(number=self._numbers)
        self._there[node] = None
        self._numbers += 1
        return node
