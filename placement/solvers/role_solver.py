"""Plans for fleets whose units are for prompts or for what comes after them: for each role by itself."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from placement.plan import Plan, UnitCapacity, UnitPlan
from placement.problem import PlacementModel, Solver
from placement.unit_role import UnitRole


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
