"""Several solvers, and another judge than the estimate: a simulation, another cost model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from placement.nodes import FleetPlan, NodePool
from placement.plan import Plan, UnitCapacity
from placement.problem import FleetSolver, PlacementModel


class Scorer(Protocol):
    def score(self, units: Sequence[UnitCapacity], models: Sequence[PlacementModel], plan: Plan) -> tuple[float, ...]:
        """Scores what the plan would serve; more is better."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateSolver:
    """The plan of each of `solvers` that `scorer` likes best; the first of equals."""

    solvers: Sequence[FleetSolver]
    scorer: Scorer

    def lay_out(self, pools: Sequence[NodePool], models: Sequence[PlacementModel]) -> FleetPlan:
        layouts = [solver.lay_out(pools, models) for solver in self.solvers]
        return max(layouts, key=lambda layout: self.scorer.score(layout.units, models, layout.plan))
