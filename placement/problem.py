"""Defines what every solver takes and gives."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from placement.demand import ModelDemand
from placement.neighbour_strain import NeighbourStrain
from placement.nodes import FleetPlan, NodePool
from placement.plan import Plan, UnitCapacity
from placement.step_correction import UNCORRECTED, StepCorrection
from profiler.specs import ModelSpec
from traces.timeliness import SloTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementModel:
    """A model to be placed; `demand` is the fleet's demand for it. Without an `slo` any latency will do. `correction`
    is what its measured steps say of the estimate beyond what they say of the units that ran them; `strains` what it
    was seen to lose to other models beyond the estimate. `adapters_bytes` are those of its LoRA adapters, which are
    with each of its replicas.
    """

    model: str
    spec: ModelSpec
    demand: ModelDemand
    min_replicas: int
    max_replicas: int
    max_model_len: int
    slo: SloTarget | None = None
    correction: StepCorrection = UNCORRECTED
    adapters_bytes: int = 0
    strains: tuple[NeighbourStrain, ...] = ()

    @property
    def target(self) -> SloTarget | None:
        """Returns what is planned for: its `slo`, as far as its requests name no other targets."""
        return None if self.slo is None else self.demand.targets.planned(self.slo)

    def at_rate(self, rate_per_s: float) -> "PlacementModel":
        """Returns the same model with so many requests."""
        return replace(self, demand=replace(self.demand, rate_per_s=rate_per_s))

    def times(self, factor: float) -> "PlacementModel":
        """Returns the same model with so many times its requests."""
        return self.at_rate(factor * self.demand.rate_per_s)


class Solver(Protocol):
    def solve(self, units: Sequence[UnitCapacity], models: Sequence[PlacementModel], current: Plan | None) -> Plan:
        """A plan for exactly `units`. Whatever of `current` speaks of other units or models is ignored. Every model
        with fewer than `min_replicas` replicas is in `Plan.unplaced` with the reason and a remedy. Deterministic,
        whatever the order of `units` and `models`.
        """
        ...


class FleetSolver(Protocol):
    def lay_out(self, pools: Sequence[NodePool], models: Sequence[PlacementModel]) -> FleetPlan:
        """Divides the nodes into units and plans for these. The same promises as `Solver.solve`."""
        ...
