"""Models that were seen to hurt each other: what plans make of it."""

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest
from placement_cases import make_model, make_unit

from placement.estimation.plan_estimate import estimate
from placement.estimation.problem_arrays import Estimator, make_instance
from placement.neighbour_strain import NeighbourStrain, strain_of
from placement.packing.packing import Packing
from placement.plan import Plan, UnitCapacity
from placement.plan_explanation import explain
from placement.problem import PlacementModel
from placement.solvers.search import SearchSolver
from profiler.gpus.a100_80g import DEVICE as A100_80G

Pairs = Mapping[tuple[str, str], float]


def units(count: int) -> list[UnitCapacity]:
    return [make_unit(f"u{i}", device=A100_80G) for i in range(count)]


def models(names: str, strains: Pairs, *, rate_per_s: float = 1.0) -> list[PlacementModel]:
    return [
        replace(
            make_model(name, rate_per_s=rate_per_s),
            strains=tuple(
                NeighbourStrain(neighbour=other, target_part=part)
                for (model, other), part in strains.items()
                if model == name
            ),
        )
        for name in names
    ]


def pairs_of(plan: Plan) -> set[str]:
    return {"".join(sorted(p.model for p in u.models)) for u in plan.units}


def test_strain__several_neighbours__is_the_sum_of_what_the_worst_model_loses() -> None:
    strains = {0: {1: 0.1, 2: 0.2, 7: 9.0}, 1: {0: 0.3}}

    assert strain_of({0: 1.0, 1: 2.0, 2: 3.0}, strains) == pytest.approx(0.1 * 2.0 + 0.2 * 3.0)
    assert strain_of({0: 1.0, 3: 5.0}, strains) == 0.0
    assert strain_of({1: 1.0, 0: 4.0}, strains) == pytest.approx(1.2)


def test_search__pair_hurts_each_other__shares_a_unit_no_more() -> None:
    before = SearchSolver().solve(units(2), models("abcd", {}), None)
    (together,) = (pair for pair in pairs_of(before) if "a" in pair)
    hurt = models("abcd", {(together[0], together[1]): 2.0, (together[1], together[0]): 2.0})

    after = SearchSolver().solve(units(2), hurt, before)

    assert together not in pairs_of(after)
    assert all(len(pair) == 2 for pair in pairs_of(after))
    assert estimate(units(2), hurt, after, Estimator()).worst_share == 1.0
    assert estimate(units(2), hurt, before, Estimator()).worst_share == pytest.approx(0.5, abs=0.05)


def test_search__pair_hurts_each_other_and_there_is_one_unit__both_are_served_as_far_as_they_can_be() -> None:
    hurt = models("ab", {("a", "b"): 2.0})

    plan = SearchSolver().solve(units(1), hurt, None)

    assert pairs_of(plan) == {"ab"}
    assert not plan.unplaced


def test_search__model_hurts_less_where_it_has_less_load__strain_is_by_its_requests() -> None:
    hurt = models("ab", {("a", "b"): 0.5})
    calm = [hurt[0], replace(hurt[1], demand=replace(hurt[1].demand, rate_per_s=0.1))]
    plan = SearchSolver().solve(units(1), hurt, None)

    busy, quiet = (estimate(units(1), asked, plan, Estimator()).units[0].headroom for asked in (hurt, calm))

    assert busy < 1 / 0.5 < quiet < 1 / 0.05


def test_packing__any_changes__tells_of_strained_units_what_looking_at_them_alone_tells() -> None:
    draw = random.Random(5)
    names = "abcdef"
    strains = {(m, o): draw.random() for m in names for o in names if m != o and draw.random() < 0.4}
    packing = Packing.of_units(make_instance(units(3), models(names, strains), Estimator()), units(3))
    for _ in range(60):
        unit, model = draw.randrange(3), draw.randrange(len(names))
        if model in packing.parts[unit]:
            packing.take(unit, model)
        else:
            packing.put(unit, model, 5 * draw.random())
        for u in range(3):
            assert packing.factor[u] == pytest.approx(packing.factor_of(u, packing.parts[u]))
        able, factors = packing.factors_with(model, 1.5, 0)
        for u, factor in zip(map(int, able), factors, strict=True):
            assert factor == pytest.approx(packing.factor_of(u, {**packing.parts[u], model: 1.5}))


def test_packing__filled_at_once__is_strained_as_one_filled_by_and_by() -> None:
    instance = make_instance(units(2), models("abc", {("a", "b"): 0.7, ("c", "a"): 0.2}), Estimator())
    parts = {0: {0: 1.0, 1: 2.0}, 1: {2: 3.0, 0: 1.0}}
    at_once, by_and_by = (Packing.of_units(instance, units(2)) for _ in range(2))

    at_once.fill(parts)
    for unit, of_unit in parts.items():
        for model, rate in of_unit.items():
            by_and_by.put(unit, model, rate)

    assert at_once.factor[:2] == pytest.approx(by_and_by.factor[:2])


def test_explain__strained_pair__says_who_loses_what_to_whom() -> None:
    hurt = models("ab", {("a", "b"): 0.2}, rate_per_s=2.0)
    plan = SearchSolver().solve(units(1), hurt, None)

    loser, taker = (explain(m, units(1), hurt, plan, Estimator()).homes[0] for m in "ab")

    assert (dict(loser.loses), dict(loser.takes)) == ({"b": pytest.approx(0.4)}, {})
    assert (dict(taker.loses), dict(taker.takes)) == ({}, {"a": pytest.approx(0.4)})
