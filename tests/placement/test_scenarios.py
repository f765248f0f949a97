from collections import Counter
from dataclasses import replace

import pytest
from llama_fleets import ESTIMATOR, LLAMA_13B, llm, nodes

from placement.estimation.problem_arrays import make_instance
from placement.nodes import openings_of
from placement.packing.layout import spread_over_nodes
from placement.packing.packing import Packing
from placement.packing.spare_replicas import spread_replicas
from placement.plan import ModelPlacement, Plan, UnitPlan
from placement.scenarios import Surprise, resilience, scenarios_of
from placement.solvers.search import SearchSolver

UNITS = [nodes(2, 2).unit(node, gpu, 1) for node in range(2) for gpu in range(2)]


def plan_of(**homes: str) -> Plan:
    """Homes of a model are numbers of UNITS."""
    held = {n: [m for m, where in homes.items() if str(n) in where] for n in range(len(UNITS))}
    return Plan(
        units=tuple(
            UnitPlan(
                unit_id=unit.unit_id, models=tuple(ModelPlacement(model=m, quota_blocks=1000) for m in held[number])
            )
            for number, unit in enumerate(UNITS)
        )
    )


def test_scenarios__any_fleet__are_errors_either_way_bursts_and_lost_nodes() -> None:
    models = [llm("a", rate_per_s=4), llm("b", LLAMA_13B)]

    found = scenarios_of(UNITS, models)

    assert Counter(s.surprise for s in found) == {Surprise.ERRORS: 6, Surprise.BURST: 2, Surprise.LOST_NODE: 2}
    errors = [s for s in found if s.surprise is Surprise.ERRORS]
    for one, other in zip(errors[::2], errors[1::2], strict=True):
        rates = [(m.demand.rate_per_s, o.demand.rate_per_s) for m, o in zip(one.models, other.models, strict=True)]
        assert [a * b for a, b in rates] == [16.0, 1.0]
        assert {a / b for a, b in rates} <= {4.0, 0.25}
    assert found == scenarios_of(UNITS, models[::-1])


def test_scenarios__bursty_model__bursts_more() -> None:
    smooth, bursty = llm("a", rate_per_s=4), llm("b", rate_per_s=4)
    bursty = replace(bursty, demand=replace(bursty.demand, arrival_cv=5.0))

    first, second = (s for s in scenarios_of(UNITS, [smooth, bursty]) if s.surprise is Surprise.BURST)

    assert [m.demand.rate_per_s for m in first.models] == pytest.approx([4, 4 * (1 + 2 * 5 / 40**0.5)])
    assert [m.demand.rate_per_s for m in second.models] == pytest.approx([4 * (1 + 2 / 40**0.5), 4])


def test_resilience__replicas_on_one_node__serve_nothing_when_it_is_lost() -> None:
    models = [llm("a")]
    scenarios = scenarios_of(UNITS, models)

    together, apart = (resilience(UNITS, plan_of(a=homes), scenarios, ESTIMATOR) for homes in ("01", "02"))

    assert (together.by_surprise[Surprise.LOST_NODE], apart.by_surprise[Surprise.LOST_NODE]) == (0.5, 1.0)
    assert apart.merit() > together.merit()


@pytest.mark.parametrize("full", [False, True], ids=["room-elsewhere", "no-room-elsewhere"])
def test_spread_replicas__second_replica__is_on_another_node_if_there_is_room(full: bool) -> None:
    models = [llm("a", max_replicas=2), *(llm(f"z{i}", rate_per_s=30, max_replicas=1) for i in range(2))]
    instance = make_instance(UNITS, models, ESTIMATOR)
    packing = Packing.of_units(instance, UNITS)
    packing.put(0, 0, 1.0)
    for number in range(2) if full else ():
        packing.put(2 + number, 1 + number, 30.0)

    spread_replicas(packing, dict(enumerate(UNITS)))

    second = (packing.homes[0] - {0}).pop()
    assert UNITS[second].node == UNITS[0 if full else 2].node


def test_lay_out__node_is_lost__models_are_served_elsewhere() -> None:
    models = [llm(f"m{i}", rate_per_s=2) for i in range(4)]

    layout = SearchSolver(estimator=ESTIMATOR, rounds=30).lay_out([nodes(2, 2)], models)

    found = resilience(layout.units, layout.plan, scenarios_of(layout.units, models), ESTIMATOR)
    assert found.by_surprise[Surprise.LOST_NODE] == pytest.approx(1.0)


def test_spread_over_nodes__two_replicas_on_one_node__are_parted_and_nothing_else_changes() -> None:
    models, pools = [llm("a"), llm("b"), llm("c")], [nodes(2, 4)]
    shapes = openings_of(pools)
    instance = make_instance([unit for _, unit in shapes], models, ESTIMATOR)
    packing = Packing.of_nodes(instance, pools)
    of_size = {unit.num_gpus: instance.kind_of(unit) for _, unit in shapes}
    for size, held in ((2, {0: 0.5}), (1, {1: 1.0}), (1, {0: 0.5, 2: 1.0})):
        unit = packing.open(of_size[size], (0, 0))
        for model, rate in held.items():
            packing.put(unit, model, rate)
    before, factors = packing.pairs(), packing.factor.copy()

    spread_over_nodes(packing)

    homes = [[packing.node_of(unit) for unit in sorted(packing.homes[model])] for model in range(3)]
    assert homes[0][0] != homes[0][1]
    assert [int(gpus) for gpus in packing.free_gpus[0]] in ([2, 2], [1, 3], [3, 1])
    assert packing.pairs() == before
    assert (packing.factor == factors).all()


def test_lay_out__hot_model_on_several_units__loses_a_part_of_them_with_a_node() -> None:
    models = [llm("hot", rate_per_s=25), *(llm(f"m{i}", rate_per_s=0.1) for i in range(4))]

    layout = SearchSolver(estimator=ESTIMATOR, rounds=20).lay_out([nodes(4, 8)], models)

    homes = [u.node for u in layout.units if u.unit_id in layout.plan.units_of("hot")]
    assert len(set(homes)) > 1
    found = resilience(layout.units, layout.plan, scenarios_of(layout.units, models), ESTIMATOR)
    assert found.by_surprise[Surprise.LOST_NODE] > 0.99


@pytest.mark.parametrize(("num_nodes", "num_models"), [(2, 6), (3, 1)])
def test_lay_out__a_part_of_the_nodes_is_enough__the_others_take_what_a_lost_node_leaves(
    num_nodes: int, num_models: int
) -> None:
    models = [llm(f"m{i}") for i in range(num_models)]

    layout = SearchSolver(estimator=ESTIMATOR, rounds=20).lay_out([nodes(num_nodes, 8)], models)

    found = resilience(layout.units, layout.plan, scenarios_of(layout.units, models), ESTIMATOR)
    assert found.by_surprise[Surprise.LOST_NODE] == pytest.approx(1.0)
    assert all(layout.plan.models_of(u.unit_id) for u in layout.units)
