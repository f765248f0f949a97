from placement.plan import ModelPlacement, Plan, UnitPlan


def plan_of(*placements: tuple[str, int], unit_id: str = "u") -> Plan:
    models = tuple(ModelPlacement(model=m, quota_blocks=q) for m, q in placements)
    return Plan(units=(UnitPlan(unit_id=unit_id, models=models),))


def test_models_of__unknown_unit__is_empty() -> None:
    assert plan_of(("a", 1)).models_of("elsewhere") == ()
