"""Defines what a solver says of itself."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from placement.estimation.problem_arrays import Estimator
from placement.plan import Plan, UnitCapacity, UnitPlan
from placement.problem import FleetSolver, PlacementModel, Solver
from placement.unit_role import UnitRole

IsTimeUp = Callable[[], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverEntry:
    """`name` is what the fleet file and `--solver` use; `rule` is its line of docs/planner.md. `make` makes one that
    plans for given units, `make_for_nodes` one that also chooses the sizes of units (None: it cannot). `online`: a
    control loop may use it; else it is for `--solver` only.
    """

    name: str
    rule: str
    make: Callable[[Estimator, IsTimeUp], Solver]
    make_for_nodes: Callable[[Estimator, IsTimeUp], FleetSolver] | None = None
    online: bool = True

    def for_units(self, estimator: Estimator, is_time_up: IsTimeUp) -> Solver:
        """Returns a solver that plans for units of every role."""
        return RoleSolver(self.make(estimator, is_time_up))


@dataclass(frozen=True, slots=True)
class RoleSolver:
    """Every model gets what it wants, one replica at least, of the units of every role that is there. Units for prompts
    are planned for one token of each output, units for decode for all of the demand: that KV of prompts comes to them
    ready-made is not counted on.
    """

    solver: Solver

    def solve(self, units: Sequence[UnitCapacity], models: Sequence[PlacementModel], current: Plan | None) -> Plan:
        roles = sorted({u.role for u in units})
        if len(roles) < 2:
            return self.solver.solve(units, models, current)
        placed, unplaced = list[UnitPlan](), dict[str, str]()
        for role in roles:
            of_role = [u for u in units if u.role is role]
            plan = self.solver.solve(of_role, [_asked_of(role, m) for m in models], current)
            placed += plan.units
            unplaced |= {m: f"on units for {role.value}: {why}" for m, why in plan.unplaced.items()}
        return Plan(units=tuple(sorted(placed, key=lambda u: u.unit_id)), unplaced=unplaced)


def _asked_of(role: UnitRole, model: PlacementModel) -> PlacementModel:
    if role is not UnitRole.PREFILL:
        return model
    return replace(model, demand=replace(model.demand, output_tokens=min(1.0, model.demand.output_tokens)))
