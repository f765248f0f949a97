import pytest
from placement_cases import make_unit

from placement.errors import InvalidPlan
from placement.plan import ModelPlacement, Plan, UnitPlan


def plan_of(*placements: tuple[str, int], unit_id: str = "u") -> Plan:
    models = tuple(ModelPlacement(model=m, quota_blocks=q) for m, q in placements)
    return Plan(units=(UnitPlan(unit_id=unit_id, models=models),))


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        (plan_of(("a", 5000)), "grants 5000 of 4096 blocks"),
        (plan_of(("a", 1), ("a", 1)), "holds 'a' 2 times"),
        (plan_of(("a", 0)), "gives 'a' 0 blocks"),
        (plan_of(("a", 1), unit_id="x"), "unit 'x' does not exist"),
        (Plan(units=(UnitPlan(unit_id="u", models=()),) * 2), "appears 2 times"),
    ],
)
def test_validate__broken_plan__names_the_problem(plan: Plan, problem: str) -> None:
    with pytest.raises(InvalidPlan, match=problem):
        plan.validate([make_unit("u", total_blocks=4096)])


def test_validate__several_problems__names_them_all() -> None:
    with pytest.raises(InvalidPlan) as caught:
        plan_of(("a", -1), ("b", 9999)).validate([make_unit("u")])

    assert len(caught.value.problems) == 2


def test_models_of__unknown_unit__is_empty() -> None:
    assert plan_of(("a", 1)).models_of("elsewhere") == ()
