"""What every solver promises, and what search adds."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_fleets import ESTIMATOR, LLAMA_7B, LLAMA_13B, LLAMA_30B, LLAMA_65B, llm, nodes, power_law
from placement_cases import assert_sound, make_model, make_spec, make_unit, model_lists, unit_lists

from placement.errors import FleetTooLarge
from placement.estimation.plan_estimate import estimate
from placement.estimation.problem_arrays import Estimator, make_instance
from placement.estimation.served_bound import most_served, most_served_of_nodes
from placement.nodes import FleetPlan, NodePool
from placement.plan import UnitCapacity
from placement.problem import FleetSolver, PlacementModel, Solver
from placement.solvers.exhaustive import ExhaustiveSolver
from placement.solvers.muxserve import MuxServeSolver, mesh_groups
from placement.solvers.registry import SOLVERS
from placement.solvers.search import SearchSolver
from placement.solvers.spatial import SpatialSolver
from profiler.gpus.a100_80g import DEVICE as A100_80G
from profiler.gpus.l40s import DEVICE as L40S

SEARCH = SearchSolver(rounds=15)
# A search of few rounds, and whatever else the register holds that does not try every plan.
ALL_SOLVERS: dict[str, Solver] = {
    name: SEARCH if name == "search" else entry.make(Estimator(), lambda: False)
    for name, entry in SOLVERS.items()
    if entry.online
}
FLEET_SOLVERS: list[FleetSolver] = [
    SearchSolver(estimator=ESTIMATOR, rounds=60),
    MuxServeSolver(estimator=ESTIMATOR),
    SpatialSolver(estimator=ESTIMATOR),
]
SMALL = settings(max_examples=settings.default.max_examples // 6)
any_solver = pytest.mark.parametrize("solver", ALL_SOLVERS.values(), ids=list(ALL_SOLVERS))
any_fleet_solver = pytest.mark.parametrize("solver", FLEET_SOLVERS, ids=lambda s: type(s).__name__)


def served_share(layout: FleetPlan, models: list[PlacementModel]) -> float:
    return estimate(layout.units, models, layout.plan, ESTIMATOR).served_share


@any_solver
@SMALL
@given(units=unit_lists(), models=model_lists())
def test_solver__any_fleet__is_sound(solver: Solver, units: list[UnitCapacity], models: list[PlacementModel]) -> None:
    assert_sound(solver.solve(units, models, None), units, models)


@any_solver
@SMALL
@given(units=unit_lists(), models=model_lists(), seed=st.integers(0, 100))
def test_solver__order_of_input__does_not_matter(
    solver: Solver, units: list[UnitCapacity], models: list[PlacementModel], seed: int
) -> None:
    draw = random.Random(seed)
    mixed_units, mixed_models = draw.sample(units, len(units)), draw.sample(models, len(models))

    plan, again = solver.solve(units, models, None), solver.solve(mixed_units, mixed_models, None)

    assert {u.unit_id: u for u in plan.units} == {u.unit_id: u for u in again.units}
    assert plan.unplaced == again.unplaced


@SMALL
@given(unit_lists(), model_lists(), unit_lists(), model_lists())
def test_search__any_current_plan__is_sound(
    units: list[UnitCapacity],
    models: list[PlacementModel],
    old_units: list[UnitCapacity],
    old_models: list[PlacementModel],
) -> None:
    current = SEARCH.solve(old_units, old_models, None)

    assert_sound(SEARCH.solve(units, models, current), units, models)


@pytest.mark.parametrize("seed", range(60))
def test_search__models_asleep_anywhere__plan_is_sound(seed: int) -> None:
    """Two models that would change places for one another's sake do so once."""
    draw = random.Random(seed)
    models = [
        make_model(
            f"m{i}",
            spec=make_spec(num_layers=draw.choice([2, 4, 8])),
            rate_per_s=draw.choice([0.1, 1.0, 5.0]),
            max_replicas=draw.choice([1, 2]),
        )
        for i in range(draw.randint(4, 9))
    ]
    units = [
        make_unit(
            f"u{i}",
            memory_mib=draw.choice([60, 120, 200]),
            asleep={m.model: draw.choice([0.1, 0.5]) for m in models if draw.random() < 0.5},
        )
        for i in range(draw.randint(3, 6))
    ]

    assert_sound(SEARCH.solve(units, models, None), units, models)


@SMALL
@given(unit_lists(), model_lists())
def test_bound__any_fleet__no_solver_exceeds_it(units: list[UnitCapacity], models: list[PlacementModel]) -> None:
    bound = most_served(units, models, Estimator())

    for solver in ALL_SOLVERS.values():
        served = estimate(units, models, solver.solve(units, models, None), Estimator()).served_per_s
        assert served <= bound * (1 + 1e-6) + 1e-6


@any_fleet_solver
@pytest.mark.parametrize(
    "pools",
    [
        (nodes(1, 5),),
        (nodes(2, 8), nodes(3, 4, device=L40S, name="b", pool_gib=15)),
        (nodes(9, 1),),
    ],
    ids=["five-gpus-a-node", "two-pools", "single-gpus"],
)
def test_layout__any_nodes__units_are_disjoint_and_plan_is_valid(
    solver: FleetSolver, pools: tuple[NodePool, ...]
) -> None:
    models = power_law([LLAMA_7B] * 4 + [LLAMA_13B] * 2, alpha=0.9, max_rate_per_s=10)

    layout = solver.lay_out(pools, models)

    assert_sound(layout.plan, list(layout.units), models)
    taken: dict[tuple[str, str], set[int]] = {}
    for unit in layout.units:
        first = int(unit.unit_id.rsplit("/", 1)[1].split("-")[0])
        gpus = set(range(first, first + unit.num_gpus))
        here = taken.setdefault((unit.pool, unit.node), set())
        assert not here & gpus
        here |= gpus
    limit = {p.name: p.gpus_per_node for p in pools}
    assert all(max(gpus) < limit[pool] for (pool, _), gpus in taken.items())


def test_search__hot_model__gets_replicas_and_serves_what_one_mesh_cannot() -> None:
    models = [llm("hot", rate_per_s=100)]

    searched, published = (s.lay_out([nodes()], models) for s in FLEET_SOLVERS[:2])

    assert len(searched.plan.units_of("hot")) > 1
    assert served_share(searched, models) > 1.2 * served_share(published, models)


def test_search__cold_models__share_the_gpus_that_spatial_gives_to_each() -> None:
    models = [llm(f"cold-{i}", rate_per_s=0.1) for i in range(8)]

    searched, _, dedicated = (s.lay_out([nodes()], models) for s in FLEET_SOLVERS)

    assert dedicated.num_gpus == 8
    assert searched.num_gpus <= 3
    assert served_share(searched, models) == pytest.approx(1.0)


def test_search__nodes_with_room__spare_gpus_become_headroom() -> None:
    models = power_law([LLAMA_7B] * 6 + [LLAMA_13B] * 2, alpha=0.9, max_rate_per_s=10)

    spent = SearchSolver(estimator=ESTIMATOR, rounds=20).lay_out([nodes(2)], models)
    fewest = SearchSolver(estimator=ESTIMATOR, rounds=20, fewest_gpus=True).lay_out([nodes(2)], models)

    room = [min(u.headroom for u in estimate(p.units, models, p.plan, ESTIMATOR).units) for p in (spent, fewest)]
    assert fewest.num_gpus <= 8 < spent.num_gpus
    assert room[0] > 1.5 * room[1]
    assert [served_share(p, models) for p in (spent, fewest)] == [pytest.approx(1.0)] * 2


def test_search__more_models_than_gpus__places_them_all() -> None:
    """Where MuxServe's release finds no placement."""
    models = [llm(f"m{i:02}", rate_per_s=0.2) for i in range(38)]

    layout = FLEET_SOLVERS[0].lay_out([nodes(4)], models)

    assert layout.plan.unplaced == {}
    assert served_share(layout, models) > 0.99


def test_search__large_model_on_small_gpus__takes_a_mesh_that_holds_it() -> None:
    layout = FLEET_SOLVERS[0].lay_out([nodes()], [llm("large", LLAMA_65B, rate_per_s=0.5)])

    (unit,) = layout.units
    assert unit.num_gpus == 4
    assert served_share(layout, [llm("large", LLAMA_65B, rate_per_s=0.5)]) == pytest.approx(1.0)


def test_search__tight_tbt__takes_a_larger_mesh_than_memory_asks_for() -> None:
    models = [llm("quick", LLAMA_13B, rate_per_s=0.5, tbt_s=0.012)]

    layout = FLEET_SOLVERS[0].lay_out([nodes()], models)

    assert all(u.num_gpus > 1 for u in layout.units)
    assert served_share(layout, models) == pytest.approx(1.0)


def test_search__slo_that_no_unit_meets__is_placed_and_said_not_to_attain() -> None:
    models = [llm("hopeless", tbt_s=0.0001), llm("fine")]

    layout = FLEET_SOLVERS[0].lay_out([nodes()], models)
    figures = {m.model: m for m in estimate(layout.units, models, layout.plan, ESTIMATOR).models}

    assert layout.plan.units_of("hopeless")
    assert not figures["hopeless"].meets_slo
    assert figures["hopeless"].served_per_s == 0
    assert figures["fine"].served_share == pytest.approx(1.0)


def test_search__own_plan_as_current__moves_nothing() -> None:
    units = [make_unit(f"u{i}", device=A100_80G, memory_mib=60_000, total_blocks=1_000_000) for i in range(6)]
    models = power_law([LLAMA_7B] * 6 + [LLAMA_13B] * 2, alpha=0.9, max_rate_per_s=8)
    plan = SEARCH.solve(units, models, None)

    again = SEARCH.solve(units, models, plan)

    assert [(u.unit_id, [p.model for p in u.models]) for u in again.units] == [
        (u.unit_id, [p.model for p in u.models]) for u in plan.units
    ]


def test_search__one_model_grows__others_stay_where_they_are() -> None:
    units = [make_unit(f"u{i}", device=A100_80G, memory_mib=60_000, total_blocks=1_000_000) for i in range(6)]
    models = [replace(m, max_replicas=1) for m in power_law([LLAMA_7B] * 6, alpha=0.9, max_rate_per_s=4)]
    plan = SEARCH.solve(units, models, None)
    hot = llm("llm-03", rate_per_s=20.0)
    hotter = [hot if m.model == hot.model else m for m in models]

    after = SEARCH.solve(units, hotter, plan)

    for model in models:
        assert set(plan.units_of(model.model)) <= set(after.units_of(model.model))
    assert len(after.units_of("llm-03")) > len(plan.units_of("llm-03"))


@pytest.mark.parametrize("seed", range(6))
def test_search__small_fleet__is_close_to_the_best_there_is(seed: int) -> None:
    draw = random.Random(seed)
    models = [
        llm(f"m{i}", draw.choice([LLAMA_7B, LLAMA_13B]), rate_per_s=draw.choice([0.5, 4, 16]), max_replicas=2)
        for i in range(3)
    ]
    pool = nodes(1, 3)

    best = served_share(ExhaustiveSolver(estimator=ESTIMATOR).lay_out([pool], models), models)
    found = served_share(SearchSolver(estimator=ESTIMATOR).lay_out([pool], models), models)

    assert found >= 0.95 * best
    assert best * sum(m.demand.rate_per_s for m in models) <= most_served_of_nodes([pool], models, ESTIMATOR) * 1.000001


def test_search__every_mesh_is_too_small_for_its_model__meshes_are_cut_smaller() -> None:
    """Alone each model would take two GPUs and still be overloaded; on one GPU each, two models are served better."""
    models = [llm("large", LLAMA_30B, rate_per_s=20), *(llm(m, rate_per_s=20, max_replicas=2) for m in ("a", "b"))]
    pool = nodes(1, 4, pool_gib=32)

    best = served_share(ExhaustiveSolver(estimator=ESTIMATOR).lay_out([pool], models), models)
    found = served_share(SearchSolver(estimator=ESTIMATOR).lay_out([pool], models), models)

    assert found >= 0.999 * best


def test_search__units_with_room__every_model_is_on_several_of_them() -> None:
    pool = nodes()
    units = [pool.unit(0, gpu, 1) for gpu in range(8)]
    models = [llm(f"m{i}", rate_per_s=1.0, max_replicas=3) for i in range(4)]

    plan = SEARCH.solve(units, models, None)

    assert all(len(plan.units_of(m.model)) == 3 for m in models)
    assert min(u.headroom for u in estimate(units, models, plan, ESTIMATOR).units) >= 1.5


def test_search__a_unit_joins__it_gets_replicas_and_nothing_moves() -> None:
    pool = nodes()
    units = [pool.unit(0, gpu, 1) for gpu in range(3)]
    models = [llm(f"m{i}", rate_per_s=1.0, max_replicas=4) for i in range(3)]
    plan = SEARCH.solve(units[:2], models, None)

    after = SEARCH.solve(units, models, plan)

    assert after.models_of(units[2].unit_id)
    for model in models:
        assert set(plan.units_of(model.model)) <= set(after.units_of(model.model))


def test_search__popularity_flips_where_spare_replicas_fill_the_units__they_give_way_and_little_moves() -> None:
    """Two large models on four units of two GPUs, where spare replicas of small ones take the rest of the memory."""
    pool = nodes(1, 8, pool_gib=32)
    units = [pool.unit(0, gpu, 2) for gpu in range(0, 8, 2)]
    models = [llm("large", LLAMA_30B, rate_per_s=0.5), *(llm(f"s{i}", rate_per_s=4.0) for i in range(4))]
    models[0] = replace(models[0], max_replicas=1)
    plan = SEARCH.solve(units, models, None)
    flipped = [
        replace(models[0], max_replicas=4, demand=replace(models[0].demand, rate_per_s=14.0)),
        *(replace(m, demand=replace(m.demand, rate_per_s=0.2)) for m in models[1:]),
    ]
    before = estimate(units, flipped, plan, ESTIMATOR).served_share

    after = SearchSolver(estimator=ESTIMATOR).solve(units, flipped, plan)

    assert estimate(units, flipped, after, ESTIMATOR).served_share > max(before + 0.2, 0.95)
    held = {u.unit_id: {p.model for p in u.models} for u in plan.units}
    assert {p.model for u in after.units for p in u.models if p.model not in held[u.unit_id]} == {"large"}


def test_search__surplus_replicas_fill_the_units__a_new_model_still_finds_a_place() -> None:
    pool = nodes(1, 2)
    units = [pool.unit(0, gpu, 1) for gpu in range(2)]
    models = [llm(f"m{i}", rate_per_s=0.2) for i in range(2)]
    plan = SEARCH.solve(units, models, None)
    assert all(len(plan.units_of(m.model)) == 2 for m in models)
    large = llm("new", LLAMA_13B, rate_per_s=0.2)

    after = SearchSolver(estimator=ESTIMATOR).solve(units, [*models, large], plan)

    assert after.unplaced == {}


def test_search__time_is_up__still_plans() -> None:
    models = power_law([LLAMA_7B] * 6, alpha=0.9, max_rate_per_s=4)

    layout = SearchSolver(estimator=ESTIMATOR, is_time_up=lambda: True).lay_out([nodes()], models)

    assert layout.plan.unplaced == {}


def test_exhaustive__too_many_plans__says_what_to_use_instead() -> None:
    models = [make_model(f"m{i}", max_replicas=4) for i in range(8)]

    with pytest.raises(FleetTooLarge, match="use solver 'search'"):
        ExhaustiveSolver(most_plans=50).solve([make_unit(f"u{i}") for i in range(6)], models, None)


def test_mesh_groups__nodes_of_eight__are_as_many_as_there_are_multisets() -> None:
    """C(2n + 3, 3) for n nodes of 8 GPUs, where MuxServe's release enumerates C(n + 9, 9)."""
    assert [len(list(mesh_groups([nodes(n)]))) for n in (1, 2, 4)] == [10, 35, 165]


@given(unit_lists(), model_lists(), st.floats(1e-6, 1e-3))
def test_least_needs__one_model_at_little_load__is_what_keeps_it_from_more(
    units: list[UnitCapacity], models: list[PlacementModel], rate_per_s: float
) -> None:
    """So that the bound rests on the limits of the estimate, not on a copy of them."""
    for costs in make_instance(units, models, Estimator()).costs:
        few = np.flatnonzero(costs.runs)
        rates = np.full(len(few), rate_per_s)
        factors = costs.factor(costs.sums(few, rates), costs.minima(few, rates))
        least = costs.least_needs()[:, few].max(axis=0).min(axis=-1)
        assert (factors * rate_per_s * least <= 1 + 1e-6).all()
