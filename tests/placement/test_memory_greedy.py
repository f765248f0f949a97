from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from placement_cases import MIB, assert_sound, make_model, make_spec, make_unit, model_lists, unit_lists

from placement.estimation.memory import bytes_for_models, resident_bytes
from placement.plan import UnitCapacity
from placement.problem import PlacementModel, Solver
from placement.solvers.memory_greedy import MemoryGreedySolver

SOLVER: Solver = MemoryGreedySolver()
BIG = make_spec(num_layers=12, hidden_size=1024)


@given(unit_lists(), model_lists())
def test_solve__any_fleet__is_sound(units: list[UnitCapacity], models: list[PlacementModel]) -> None:
    assert_sound(SOLVER.solve(units, models, None), units, models)


@given(unit_lists(), model_lists(), unit_lists(), model_lists())
def test_solve__any_current_plan__is_sound(
    units: list[UnitCapacity],
    models: list[PlacementModel],
    old_units: list[UnitCapacity],
    old_models: list[PlacementModel],
) -> None:
    current = SOLVER.solve(old_units, old_models, None)

    assert_sound(SOLVER.solve(units, models, current), units, models)


@given(unit_lists(), model_lists(), st.randoms())
def test_solve__order_of_input__does_not_matter(
    units: list[UnitCapacity], models: list[PlacementModel], random: object
) -> None:
    mixed_units, mixed_models = list(units), list(models)
    random.shuffle(mixed_units)  # type: ignore[attr-defined]  # hypothesis types it as object
    random.shuffle(mixed_models)  # type: ignore[attr-defined]

    assert SOLVER.solve(units, models, None) == SOLVER.solve(mixed_units, mixed_models, None)


@given(unit_lists(), model_lists())
def test_solve__own_plan_as_current__moves_nothing(units: list[UnitCapacity], models: list[PlacementModel]) -> None:
    plan = SOLVER.solve(units, models, None)

    again = SOLVER.solve(units, models, plan)

    for model in models:
        assert set(plan.units_of(model.model)) <= set(again.units_of(model.model))


def test_solve__rates_swapped__models_stay_and_quotas_follow() -> None:
    units = [make_unit("u0"), make_unit("u1")]
    models = [make_model("a", rate_per_s=9), make_model("b", rate_per_s=3), make_model("c", rate_per_s=1)]
    before = SOLVER.solve(units, models, None)

    after = SOLVER.solve(units, [replace(m, demand=replace(m.demand, rate_per_s=10)) for m in models], before)

    assert [before.units_of(m) for m in "abc"] == [after.units_of(m) for m in "abc"]
    assert before != after


def test_solve__equal_units__spreads_the_hottest_first() -> None:
    units = [make_unit("u0"), make_unit("u1")]
    plan = SOLVER.solve(units, [make_model("cold", rate_per_s=1), make_model("hot", rate_per_s=9)], None)

    assert plan.units_of("hot") == ("u0",)
    assert plan.units_of("cold") == ("u1",)


def test_solve__new_model_needs_room__surplus_replica_gives_way() -> None:
    memory_mib = 64 + resident_bytes(BIG) // MIB + 2
    units = [make_unit("u0", memory_mib=memory_mib), make_unit("u1", memory_mib=memory_mib)]
    old = make_model("old", spec=BIG, max_replicas=2)
    current = SOLVER.solve(units, [old], None)

    plan = SOLVER.solve(units, [old, make_model("new", spec=BIG, rate_per_s=0.1)], current)

    assert current.units_of("old") == ("u0", "u1")
    assert plan.unplaced == {}
    assert len(plan.units_of("old")) == len(plan.units_of("new")) == 1


def test_solve__hot_small_models_would_block_a_large_one__packs_by_size_instead() -> None:
    small = make_spec(num_layers=6, hidden_size=1024)
    room_mib = 64 + 2 * resident_bytes(small) // MIB + 2
    units = [make_unit("u0", memory_mib=room_mib), make_unit("u1", memory_mib=room_mib)]
    assert resident_bytes(BIG) <= bytes_for_models(units[0]) < resident_bytes(BIG) + resident_bytes(small)

    plan = SOLVER.solve(
        units,
        [
            make_model("s1", spec=small, rate_per_s=9),
            make_model("s2", spec=small, rate_per_s=8),
            make_model("big", spec=BIG),
        ],
        None,
    )

    assert plan.unplaced == {}


def test_solve__no_units__says_so() -> None:
    plan = SOLVER.solve([], [make_model("m")], None)

    assert "add a unit" in plan.unplaced["m"]


def test_solve__model_larger_than_any_unit__names_the_closest_unit_and_what_is_missing() -> None:
    units = [make_unit("small", memory_mib=80), make_unit("large", memory_mib=100)]
    missing_mib = -(-resident_bytes(BIG) // MIB) - (100 - 64)

    reason = SOLVER.solve(units, [make_model("m", spec=BIG)], None).unplaced["m"]

    assert "unit large has 36 MiB free" in reason
    assert f"free {missing_mib} MiB there" in reason
    assert "add a unit" not in reason


def test_solve__following_the_remedy__places_the_model() -> None:
    unit = make_unit("u", memory_mib=200, total_blocks=10)
    model = make_model("m", spec=make_spec(num_layers=4, num_kv_heads=2), tokens=320)

    reason = SOLVER.solve([unit], [model], None).unplaced["m"]

    assert "raise the KV pool of its units (pools[].kv_memory) by 1 MiB" in reason
    larger = replace(unit, total_blocks=unit.total_blocks + MIB // unit.block_bytes)
    assert SOLVER.solve([larger], [model], None).unplaced == {}


def test_solve__fewer_units_than_replicas__places_some_and_says_so() -> None:
    plan = SOLVER.solve([make_unit("u")], [make_model("m", min_replicas=2)], None)

    assert plan.units_of("m") == ("u",)
    assert plan.unplaced["m"].startswith("1 of 2 replicas placed: ")


def test_solve__five_hundred_units__places_every_replica_allowed() -> None:
    units = [make_unit(f"u{i:03}") for i in range(500)]
    models = [make_model(f"m{i:02}", rate_per_s=i, max_replicas=20) for i in range(40)]

    plan = SOLVER.solve(units, models, None)

    assert sum(len(u.models) for u in plan.units) == 40 * 20
