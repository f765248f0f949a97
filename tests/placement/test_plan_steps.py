from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from placement.plan import ModelPlacement, Plan, UnitPlan
from placement.plan_steps import DrainModelStep, Fits, LoadModelStep, SetQuotasStep, Step, move_cost, steps_between

POOL_BLOCKS = 100
Quotas = dict[str, dict[str, int]]


def plan_of(units: Mapping[str, Mapping[str, int]]) -> Plan:
    return Plan(
        units=tuple(
            UnitPlan(
                unit_id=u, models=tuple(ModelPlacement(model=m, quota_blocks=q) for m, q in sorted(models.items()))
            )
            for u, models in sorted(units.items())
        )
    )


def at_most(num_models: int) -> Fits:
    return lambda _, models: len(models) <= num_models


def apply(state: Quotas, step: Step) -> None:
    match step:
        case SetQuotasStep(unit_id=unit_id, quota_blocks=quotas):
            assert quotas.keys() <= state[unit_id].keys(), "quotas of models that are there"
            state[unit_id] |= quotas
        case LoadModelStep(unit_id=unit_id, model=model, quota_blocks=blocks):
            assert model not in state.setdefault(unit_id, {})
            state[unit_id][model] = blocks
        case DrainModelStep(unit_id=unit_id, model=model):
            del state[unit_id][model]


@st.composite
def unit_quotas(draw: st.DrawFn) -> Quotas:
    units: Quotas = {}
    for unit_id in draw(st.lists(st.sampled_from(["u0", "u1", "u2"]), unique=True)):
        models = draw(st.lists(st.sampled_from("abcd"), unique=True, max_size=2))
        units[unit_id] = {m: draw(st.integers(1, POOL_BLOCKS // 2)) for m in models}
    return units


def held_models(state: Quotas) -> set[str]:
    return {m for models in state.values() for m in models}


@given(unit_quotas(), unit_quotas(), st.integers(2, 4))
def test_steps__any_two_plans__end_there_within_pool_and_memory(old: Quotas, new: Quotas, room: int) -> None:
    state = {u: dict(models) for u, models in old.items()}
    kept_served = held_models(old) & held_models(new)

    for step in steps_between(plan_of(old), plan_of(new), fits=at_most(room)):
        before = held_models(state)
        apply(state, step)
        assert all(sum(models.values()) <= POOL_BLOCKS for models in state.values())
        assert all(len(models) <= room for models in state.values())
        if kept_served & (before - held_models(state)):
            assert isinstance(step, DrainModelStep)
            assert step.interrupts

    assert {u: m for u, m in state.items() if m} == {u: m for u, m in new.items() if m}


@given(unit_quotas(), unit_quotas())
def test_steps__room_for_both__never_interrupt(old: Quotas, new: Quotas) -> None:
    steps = steps_between(plan_of(old), plan_of(new), fits=at_most(4))

    assert not [s for s in steps if isinstance(s, DrainModelStep) and s.interrupts]


@given(unit_quotas())
def test_steps__same_plan__are_none(units: Quotas) -> None:
    assert steps_between(plan_of(units), plan_of(units), fits=at_most(2)) == ()


def test_steps__model_moves__loads_before_it_drains() -> None:
    steps = steps_between(plan_of({"u0": {"a": 100}}), plan_of({"u1": {"a": 80}}), fits=at_most(1))

    assert steps == (
        LoadModelStep(unit_id="u1", model="a", quota_blocks=80),
        DrainModelStep(unit_id="u0", model="a"),
    )


def test_steps__two_models_swap_without_room__interrupt_one_only() -> None:
    steps = steps_between(
        plan_of({"u0": {"a": 100}, "u1": {"b": 100}}), plan_of({"u0": {"b": 100}, "u1": {"a": 100}}), fits=at_most(1)
    )

    assert len([s for s in steps if isinstance(s, DrainModelStep) and s.interrupts]) == 1


def test_steps__quota_moves_to_another_model__shrinks_before_it_grows() -> None:
    steps = steps_between(plan_of({"u0": {"a": 90, "b": 10}}), plan_of({"u0": {"a": 10, "b": 90}}), fits=at_most(2))

    assert steps == (
        SetQuotasStep(unit_id="u0", quota_blocks={"a": 10}),
        SetQuotasStep(unit_id="u0", quota_blocks={"b": 90}),
    )


def test_steps__model_sleeps_where_it_goes__is_woken_first_and_costs_its_copy() -> None:
    old, new = plan_of({"u0": {"a": 50}}), plan_of({"u0": {"a": 50, "b": 20, "c": 20}, "u1": {"c": 10}})

    steps = steps_between(old, new, fits=at_most(4), asleep={"u0": {"c": 0.25}})
    loads = [s for s in steps if isinstance(s, LoadModelStep)]
    cost = move_cost(steps, {"a": 100, "b": 200, "c": 400}, load_bytes_per_s=100.0)

    assert [(s.unit_id, s.model, s.wake_s) for s in loads] == [("u0", "c", 0.25), ("u0", "b", None), ("u1", "c", None)]
    assert (cost.loads, cost.wakes, cost.load_bytes) == (3, 1, 600)
    assert cost.seconds == 4.0  # u1 reads c; u0 wakes c in 0.25 s and reads b in 2 s
