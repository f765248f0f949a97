"""Defines pools whose number of nodes is to be found, and what is found."""

from collections.abc import Mapping, Sequence
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
