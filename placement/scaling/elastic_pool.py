"""Defines pools whose number of nodes is to be found, within which bounds, and what is
found.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from placement.plan import UnitCapacity


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticPool:
    """`nodes` are there: the units of each. `like` are the units of a node that would be added."""

    name: str
    least_nodes: int
    most_nodes: int
    nodes: tuple[tuple[UnitCapacity, ...], ...]
    like: tuple[UnitCapacity, ...]
    cost_per_hour: float = 1.0

    @property
    def gpus_per_node(self) -> int:
        return sum(unit.num_gpus for unit in self.like)

    def units(self, num_nodes: int) -> tuple[UnitCapacity, ...]:
        """Returns the units of so many nodes: those that are there, as far as they go, and new ones."""
        kept = [unit for node in self.nodes[:num_nodes] for unit in node]
        for number in range(len(self.nodes), num_nodes):
            node = f"{self.name}/new-{number}"
            kept += [replace(unit, unit_id=f"{node}/{i}", node=node, asleep={}) for i, unit in enumerate(self.like)]
        return tuple(kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSize:
    """Nodes of each elastic pool, the share of requests in time that is predicted of them, and their cost per hour.
    `is_enough` is False where no size within the bounds is predicted to reach the target. `left_out` are models that do
    not count, since no pool meets their SLOs at any size. `is_cut`: time was up, so a cheaper size may exist.
    """

    nodes: Mapping[str, int]
    attainment: float
    cost_per_hour: float
    is_enough: bool
    left_out: tuple[str, ...] = ()
    is_cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeLimits:
    """`target_attainment`: of requests in time, from 0 to 1. `max_cost_per_hour`, `max_gpus`: of all
    elastic pools together. `uncertainty`: relative standard deviation of the demand about what is expected.
    """

    target_attainment: float = 0.99
    max_cost_per_hour: float | None = None
    max_gpus: int | None = None
    uncertainty: float = 0.15


def cost_per_hour(pools: Sequence[ElasticPool], nodes: Mapping[str, int]) -> float:
    return sum(pool.cost_per_hour * nodes[pool.name] for pool in pools)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldNodes:
    """Says what a pool holds. `gpus` and `cost_per_hour` are of one node."""

    nodes: int
    gpus: int
    cost_per_hour: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """None: no bound. What pools have at least, by their bounds and schedules, is there all the same."""

    max_cost_per_hour: float | None = None
    max_gpus: int | None = None

    def admit(self, held: Iterable[HeldNodes]) -> bool:
        pools = list(held)
        cost, gpus = sum(p.nodes * p.cost_per_hour for p in pools), sum(p.nodes * p.gpus for p in pools)
        return _within(cost, self.max_cost_per_hour) and _within(gpus, self.max_gpus)

    def most_beside(self, pool: HeldNodes, others: Iterable[HeldNodes]) -> int:
        """Returns how many nodes like `pool`'s there may be while the others hold what they do."""
        held = list(others)
        spent, gpus = sum(p.nodes * p.cost_per_hour for p in held), sum(p.nodes * p.gpus for p in held)
        by_cost = _room(self.max_cost_per_hour, spent, pool.cost_per_hour)
        return max(0, min(by_cost, _room(self.max_gpus, gpus, pool.gpus)))


def _within(amount: float, most: float | None) -> bool:
    return most is None or amount <= most


def _room(most: float | None, taken: float, each: float) -> int:
    return 1_000_000 if most is None or each <= 0 else math.floor((most - taken) / each + 1e-9)
