"""What every solver takes and gives."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from placement.demand import ModelDemand
from placement.plan import Plan, UnitCapacity
from profiler.specs import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementModel:
    """A model to be placed; `demand` is the fleet's demand for it."""

    model: str
    spec: ModelSpec
    demand: ModelDemand
    min_replicas: int
    max_replicas: int
    max_model_len: int


class Solver(Protocol):
    def solve(self, units: Sequence[UnitCapacity], models: Sequence[PlacementModel], current: Plan | None) -> Plan:
        """A plan for exactly `units`. Whatever of `current` speaks of other units or models is ignored. Every model
        with fewer than `min_replicas` replicas is in `Plan.unplaced` with the reason and a remedy. Deterministic,
        whatever the order of `units` and `models`.
        """
        ...
