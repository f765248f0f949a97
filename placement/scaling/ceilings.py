"""Bounds what all pools together may have."""

import math
from collections.abc import Iterable
from dataclasses import dataclass


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
