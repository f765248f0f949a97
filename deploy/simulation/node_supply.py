"""Nodes that come and go in virtual time, as the control loop wants them, and what they cost."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from deploy.control.pool_scaling import PoolState
from deploy.simulation.leased_unit import LeasedUnit
from pdmux_actor.lease import UnitReport

_FAREWELL_S = 4.0  # that a unit says it leaves: longer than the control loop waits before it believes it


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUse:
    """`node_hours`: from when a node was asked for to its end. `changes`: nodes that were added or taken. `most`: there
    at once.
    """

    node_hours: float
    gpu_hours: float
    cost: float
    changes: int
    most: int


@dataclass(slots=True, eq=False)
class _Node:
    pool: str
    units: Sequence[LeasedUnit]
    asked_s: float | None = None  # None: not there, and not on its way
    there_s: float = 0.0
    ends_s: float | None = None


class NodeSupply:
    """`provision_s` and `cost_per_hour` of a node, by pool. The nodes in `first`, by pool, are there from the start."""

    def __init__(
        self,
        units: Mapping[str, LeasedUnit],
        *,
        first: Mapping[str, int],
        provision_s: Mapping[str, float],
        cost_per_hour: Mapping[str, float],
    ) -> None:
        by_node: defaultdict[tuple[str, str], list[LeasedUnit]] = defaultdict(list)
        for unit in units.values():
            by_node[unit.identity.pool, unit.identity.node].append(unit)
        self._nodes = [_Node(pool, of_node) for (pool, _), of_node in by_node.items()]
        self._provision_s, self._cost_per_hour = provision_s, cost_per_hour
        self._used_s: defaultdict[str, float] = defaultdict(float)
        self._gpu_s = 0.0
        self._changes = self._most = 0
        left = Counter(first)
        for node in self._nodes:
            if left[node.pool] > 0:
                left[node.pool] -= 1
                node.asked_s = 0.0

    def present(self, now_s: float) -> list[LeasedUnit]:
        there = [n for n in self._nodes if n.asked_s is not None and n.there_s <= now_s]
        self._most = max(self._most, len(there))
        return [unit for node in there for unit in node.units]

    def report(self, unit: LeasedUnit) -> UnitReport:
        """Returns what the unit tells of itself now."""
        told = unit.heartbeat()
        leaves = any(n.ends_s is not None and unit in n.units for n in self._nodes)
        return replace(told, is_leaving=True) if leaves else told

    def follow(self, pools: Sequence[PoolState], now_s: float) -> None:
        """Asks for nodes that are wanted in addition, and ends those that are empty and shall go."""
        for node in [n for n in self._nodes if n.ends_s is not None and n.ends_s <= now_s]:
            self._end(node, now_s)
        for state in pools:
            if state.shadow:
                continue
            nodes = [n for n in self._nodes if n.pool == state.pool]
            for node in nodes:
                if node.ends_s is None and {u.identity.unit_id for u in node.units} <= set(state.emptied):
                    node.ends_s = now_s + _FAREWELL_S
            staying = [n for n in nodes if n.asked_s is not None and n.ends_s is None]
            for node in [n for n in nodes if n.asked_s is None][: max(0, state.wanted - len(staying))]:
                node.asked_s, node.there_s = now_s, now_s + self._provision_s[state.pool]
                self._changes += 1
            on_the_way = [n for n in staying if n.there_s > now_s]
            for node in on_the_way[: max(0, len(staying) - state.wanted)]:
                self._end(node, now_s)

    def use(self, now_s: float) -> NodeUse:
        used_s, gpu_s = self._used_s.copy(), self._gpu_s
        for node in self._nodes:
            if node.asked_s is not None:
                used_s[node.pool] += now_s - node.asked_s
                gpu_s += (now_s - node.asked_s) * _gpus(node)
        return NodeUse(
            node_hours=sum(used_s.values()) / 3600,
            gpu_hours=gpu_s / 3600,
            cost=sum(s / 3600 * self._cost_per_hour[pool] for pool, s in used_s.items()),
            changes=self._changes,
            most=self._most,
        )

    def _end(self, node: _Node, now_s: float) -> None:
        assert node.asked_s is not None, "it is there, or on its way"
        self._used_s[node.pool] += now_s - node.asked_s
        self._gpu_s += (now_s - node.asked_s) * _gpus(node)
        self._changes += 1
        node.asked_s = node.ends_s = None


def _gpus(node: _Node) -> int:
    return sum(unit.identity.num_gpus for unit in node.units)
