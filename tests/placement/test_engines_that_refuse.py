"""Plans put a model only where the unit's engine runs it, and say why where none does."""

import pytest
from placement_cases import make_model, make_spec, make_unit

from placement.estimation.problem_arrays import Estimator
from placement.plan import Plan
from placement.plan_explanation import explain
from placement.problem import Solver
from placement.solvers.memory_greedy import MemoryGreedySolver
from placement.solvers.search import SearchSolver
from profiler.gpus.a100_80g import DEVICE as A100_80G

CAPPED = make_model("capped", spec=make_spec(architecture="Gemma2ForCausalLM"), max_replicas=2)
PLAIN = make_model("plain")
ESTIMATOR = Estimator()


@pytest.fixture(params=[SearchSolver(estimator=ESTIMATOR), MemoryGreedySolver()], ids=["search", "memory_greedy"])
def solver(request: pytest.FixtureRequest) -> Solver:
    found: Solver = request.param
    return found


def test_solve__one_pool_of_gpus_and_one_of_cpus__puts_the_family_where_it_runs(solver: Solver) -> None:
    units = [make_unit("a", native_on="cuda"), make_unit("b", native_on="cpu"), make_unit("c", native_on=None)]

    plan = solver.solve(units, [CAPPED, PLAIN], None)

    assert plan.units_of("capped")
    assert "a" not in plan.units_of("capped")
    assert not plan.unplaced


def test_solve__current_plan_has_it_where_it_does_not_run__moves_it(solver: Solver) -> None:
    before = solver.solve([make_unit("a"), make_unit("b")], [CAPPED], None)
    units = [make_unit("a", native_on="cuda"), make_unit("b", native_on="cpu")]

    assert solver.solve(units, [CAPPED], before).units_of("capped") == ("b",)


def test_solve__only_gpus__says_which_family_they_do_not_run(solver: Solver) -> None:
    plan = solver.solve([make_unit("a", native_on="cuda")], [CAPPED, PLAIN], None)

    assert plan.units_of("plain") == ("a",)
    assert plan.unplaced["capped"].startswith("Gemma2ForCausalLM is not served on a GPU: ")
    assert "pool of CPUs" in plan.unplaced["capped"]


def test_explain__unit_that_does_not_run_it__says_why() -> None:
    units = [make_unit("a", native_on="cuda", device=A100_80G), make_unit("b", native_on="cpu", device=A100_80G)]
    plan: Plan = SearchSolver(estimator=ESTIMATOR).solve(units, [CAPPED], None)

    told = explain("capped", units, [CAPPED], plan, ESTIMATOR)

    assert [home.unit.unit_id for home in told.homes] == ["b"]
    assert [(r.unit_id, r.reason.split(":")[0]) for r in told.rejected] == [
        ("a", "Gemma2ForCausalLM is not served on a GPU")
    ]
