"""Nodes that come and go in virtual time, as the control loop wants them, and what they cost."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from deploy.control.pool_scaling import PoolState
from deploy.fleet_file.scaling_section import SpotSection
from deploy.simulation.leased_unit import LeasedUnit
from pdmux_actor.lease import UnitReport

_FAREWELL_S = 4.0  # that a unit says it leaves: longer than the control loop waits before it believes it


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUse:
    """`node_hours`: from when a node was asked for to its end. `changes`: nodes that were added or taken. `most`: there
    at once. `lost`: spot nodes that the provider took away, and `cut` the requests that ran on them at that time.
    """

    node_hours: float
    gpu_hours: float
    cost: float
    changes: int
    most: int
    lost: int = 0
    cut: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTerms:
    """Says what nodes of a pool take to come, and cost. `spot`: its provider takes them away again."""

    provision_s: float
    cost_per_hour: float
    spot: SpotSection | None = None


@dataclass(slots=True, eq=False)
class _Node:
    pool: str
    units: Sequence[LeasedUnit]
    asked_s: float | None = None  # None: not there, and not on its way
    there_s: float = 0.0
    lost_s: float = math.inf  # then the provider takes it away
    ends_s: float | None = None


class NodeSupply:
    """`terms` by pool. The nodes in `first`, by pool, are there from the start. How long a spot node lives is drawn by
    `seed`, from an exponential distribution: it is as likely to be taken away at any time.
    """

    def __init__(
        self,
        units: Mapping[str, LeasedUnit],
        *,
        first: Mapping[str, int],
        terms: Mapping[str, NodeTerms],
        seed: int = 0,
    ) -> None:
        by_node: defaultdict[tuple[str, str], list[LeasedUnit]] = defaultdict(list)
        for unit in units.values():
            by_node[unit.identity.pool, unit.identity.node].append(unit)
        self._nodes = [_Node(pool, of_node) for (pool, _), of_node in by_node.items()]
        self._terms = terms
        self._draw = np.random.default_rng(seed)
        self._used_s: defaultdict[str, float] = defaultdict(float)
        self._gpu_s = 0.0
        self._changes = self._most = self._lost = self._cut = 0
        left = Counter(first)
        for node in self._nodes:
            if left[node.pool] > 0:
                left[node.pool] -= 1
                self._begin(node, 0.0, 0.0)

    def present(self, now_s: float) -> list[LeasedUnit]:
        there = [n for n in self._nodes if n.asked_s is not None and n.there_s <= now_s]
        self._most = max(self._most, len(there))
        return [unit for node in there for unit in node.units]

    def going(self, now_s: float) -> frozenset[str]:
        """Returns the nodes of which the provider has said that it takes them away."""
        return frozenset(n.units[0].identity.node for n in self._nodes if self._is_going(n, now_s))

    def report(self, unit: LeasedUnit, now_s: float) -> UnitReport:
        """Returns what the unit tells of itself now."""
        told = unit.heartbeat()
        ending = (n.ends_s for n in self._nodes if n.ends_s is not None and unit in n.units)
        leaves = any(now_s >= ends_s - _FAREWELL_S - 1e-6 for ends_s in ending)
        return replace(told, is_leaving=True) if leaves else told

    def follow(self, pools: Sequence[PoolState], now_s: float) -> None:
        """Asks for nodes that are wanted in addition, and ends those that are empty and shall go, or are taken away."""
        for node in self._nodes:
            if self._is_going(node, now_s) and node.ends_s is None:
                node.ends_s = node.lost_s
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
                self._begin(node, now_s, now_s + self._terms[state.pool].provision_s)
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
            cost=sum(s / 3600 * self._terms[pool].cost_per_hour for pool, s in used_s.items()),
            changes=self._changes,
            most=self._most,
            lost=self._lost,
            cut=self._cut,
        )

    def _is_going(self, node: _Node, now_s: float) -> bool:
        spot = self._terms[node.pool].spot
        is_there = node.asked_s is not None and node.there_s <= now_s
        return spot is not None and is_there and now_s >= node.lost_s - spot.notice_s

    def _begin(self, node: _Node, now_s: float, there_s: float) -> None:
        spot = self._terms[node.pool].spot
        node.asked_s, node.there_s = now_s, there_s
        node.lost_s = math.inf if spot is None else there_s + float(self._draw.exponential(spot.lost_every_s))

    def _end(self, node: _Node, now_s: float) -> None:
        assert node.asked_s is not None, "it is there, or on its way"
        self._used_s[node.pool] += now_s - node.asked_s
        self._gpu_s += (now_s - node.asked_s) * _gpus(node)
        self._changes += 1
        self._lost += node.lost_s <= now_s
        self._cut += sum(unit.die() for unit in node.units)  # the next one is another, and holds nothing
        node.asked_s = node.ends_s = None


def _gpus(node: _Node) -> int:
    return sum(unit.identity.num_gpus for unit in node.units)
