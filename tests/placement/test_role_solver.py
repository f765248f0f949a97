"""Units of roles: every model is on one of each at least."""

from dataclasses import replace

import pytest
from placement_cases import make_model, make_unit

from placement.estimation.problem_arrays import Estimator
from placement.plan import UnitCapacity
from placement.problem import Solver
from placement.solvers.entry import RoleSolver
from placement.solvers.memory_greedy import MemoryGreedySolver
from placement.solvers.registry import SOLVERS
from placement.unit_role import UnitRole
from profiler.gpus.a100_80g import DEVICE as A100_80G


def units(**roles: UnitRole) -> list[UnitCapacity]:
    return [replace(make_unit(name), role=role) for name, role in roles.items()]


class AsAsked:
    """Notes what a solver is asked, by the units that it is given."""

    def __init__(self) -> None:
        self.asked: dict[frozenset[str], float] = {}
        self._solver: Solver = MemoryGreedySolver()

    def solve(self, units, models, current):
        self.asked[frozenset(u.unit_id for u in units)] = models[0].demand.output_tokens
        return self._solver.solve(units, models, current)


def test_solve__two_roles__every_model_is_on_one_of_each() -> None:
    fleet = units(a=UnitRole.PREFILL, b=UnitRole.PREFILL, c=UnitRole.DECODE)
    models = [make_model("m"), make_model("n")]
    solver = AsAsked()

    plan = RoleSolver(solver).solve(fleet, models, None)

    assert {u.unit_id for u in plan.units} == {"a", "b", "c"}
    assert not plan.unplaced
    for model in ("m", "n"):
        held = plan.units_of(model)
        assert "c" in held
        assert {"a", "b"} & set(held)
    assert solver.asked == {frozenset("ab"): 1.0, frozenset("c"): models[0].demand.output_tokens}
    assert RoleSolver(solver).solve(fleet, models, plan).units == plan.units


def test_solve__model_fits_one_role_only__says_which_it_lacks() -> None:
    fleet = units(a=UnitRole.PREFILL, c=UnitRole.DECODE)
    fleet[1] = replace(fleet[1], memory_bytes=fleet[1].total_blocks * fleet[1].block_bytes)

    plan = RoleSolver(MemoryGreedySolver()).solve(fleet, [make_model("m")], None)

    assert plan.units_of("m") == ("a",)
    assert plan.unplaced["m"].startswith("on units for decode: ")


@pytest.mark.parametrize("role", UnitRole)
def test_solve__one_role__plans_as_ever(role: UnitRole) -> None:
    fleet = units(a=role, b=role)
    solver = AsAsked()
    models = [make_model("m")]

    plan = RoleSolver(solver).solve(fleet, models, None)

    assert plan == MemoryGreedySolver().solve(fleet, models, None)
    assert solver.asked == {frozenset("ab"): models[0].demand.output_tokens}


@pytest.mark.parametrize("name", [name for name, entry in SOLVERS.items() if entry.online])
def test_for_units__any_solver_of_a_running_fleet__knows_roles(name: str) -> None:
    fleet = [replace(u, device=A100_80G) for u in units(a=UnitRole.PREFILL, c=UnitRole.DECODE)]
    plan = SOLVERS[name].for_units(Estimator(), lambda: False).solve(fleet, [make_model("m")], None)

    assert plan.units_of("m") == ("a", "c")
