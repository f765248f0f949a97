"""A packing's books, after any changes and whatever is taken back, and what it tells of models that found no place."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from placement_cases import make_model, make_spec, make_unit, model_lists, unit_lists

from placement.estimation.problem_arrays import Estimator, make_instance
from placement.estimation.refusal import refusal
from placement.estimation.throughput import Floats, KindCosts
from placement.packing.layout import plan_of_packing
from placement.packing.packing import Packing
from placement.packing.packing_objective import key_of
from placement.plan import UnitCapacity
from placement.problem import PlacementModel


def packed(units: list[UnitCapacity], models: list[PlacementModel], draw: random.Random) -> Packing:
    """Models wherever there is room, changed at random; some changes are taken back."""
    packing = Packing.of_units(make_instance(units, models, Estimator()), units)
    for step in range(40):
        if step == 10:
            packing.mark_running()
        packing.begin()
        for _ in range(draw.randint(1, 3)):
            unit, model = draw.randrange(len(units)), draw.randrange(len(models))
            if model in packing.parts[unit]:
                packing.take(unit, model)
            elif packing.factor_of(unit, {**packing.parts[unit], model: 1.0}) >= 0:
                packing.put(unit, model, draw.random() * 5)
        if draw.random() < 0.4:
            packing.roll_back()
        else:
            packing.commit()
    return packing


@settings(max_examples=60, deadline=None)
@given(unit_lists(), model_lists())
def test_packing__any_changes__counts_what_is_missing_and_what_has_to_be_loaded(
    units: list[UnitCapacity], models: list[PlacementModel]
) -> None:
    if not units or not models:
        return
    packing = packed(units, models, random.Random(len(units) * 100 + len(models)))
    instance = packing.instance
    missing = [
        max(0, m.min_replicas - len(homes)) * bool(able)
        for m, homes, able in zip(instance.models, packing.homes, instance.placeable, strict=True)
    ]

    assert packing.missing == sum(missing)
    assert packing.running is not None
    assert packing.loaded == len(packing.pairs() - packing.running)
    assert packing.dropped == len(packing.running - packing.pairs())


@settings(max_examples=60, deadline=None)
@given(unit_lists(), model_lists())
def test_fill__units_at_once__are_as_if_filled_one_by_one(
    units: list[UnitCapacity], models: list[PlacementModel]
) -> None:
    if not units or not models:
        return
    one_by_one = packed(units, models, random.Random(1))
    at_once = Packing.of_units(one_by_one.instance, units)

    at_once.fill({u: parts for u, parts in enumerate(one_by_one.parts[: len(units)]) if parts})

    assert at_once.pairs() == one_by_one.pairs()
    assert at_once.missing == one_by_one.missing
    assert at_once.gpus_used == one_by_one.gpus_used
    for ours, theirs in (
        (at_once.sums, one_by_one.sums),
        (at_once.factor, one_by_one.factor),
        (at_once.served_of, one_by_one.served_of),
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


@settings(max_examples=100, deadline=None)
@given(unit_lists(), model_lists())
def test_refusals__of_many_units__are_those_of_the_unit_that_lacks_least(
    units: list[UnitCapacity], models: list[PlacementModel]
) -> None:
    """Only one unit of each kind is looked at closely; the answer is that of all."""
    if not units or not models:
        return
    packing = packed(units, models, random.Random(2))
    numbered = dict(enumerate(units))
    plan = plan_of_packing(packing, numbered, rule="there is a rule")

    for number, model in enumerate(packing.instance.models):
        if model.model in plan.unplaced:
            others = [
                (unit, [packing.instance.models[m] for m in packing.parts[u]])
                for u, unit in numbered.items()
                if u not in packing.homes[number]
            ]
            assert plan.unplaced[model.model].endswith(refusal(model, others, rule="there is a rule"))


def test_packing__trial_that_was_taken_back__is_not_worked_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of a search's time goes into what units carry, and most trials of a small fleet come again."""
    units, models = [make_unit("u0"), make_unit("u1")], [make_model("a", rate_per_s=2.0), make_model("b")]
    packing = Packing.of_units(make_instance(units, models, Estimator()), units)
    worked_out: list[Floats] = []
    whole = KindCosts.factor

    def noted(costs: KindCosts, sums: Floats, minima: Floats) -> Floats:
        worked_out.append(sums)
        return whole(costs, sums, minima)

    monkeypatch.setattr(KindCosts, "factor", noted)
    seen = []
    for _ in range(3):
        packing.begin()
        packing.put(0, 0, 1.5)
        packing.put(0, 1, 0.5)
        packing.put(1, 0, 0.5)
        seen.append((packing.sums.tobytes(), packing.minima.tobytes(), packing.factor.tobytes()))
        packing.roll_back()

    assert len(worked_out) == 3
    assert len(set(seen)) == 1


def test_key__model_that_no_unit_holds__worst_of_the_others_still_counts() -> None:
    """A search would otherwise not see whom it could help."""
    units = [make_unit(f"u{i}") for i in range(2)]
    models = [make_model(m, rate_per_s=2.0) for m in "ab"]
    huge = make_model("huge", spec=make_spec(num_layers=500))
    with_it, without = (
        Packing.of_units(make_instance(units, asked, Estimator()), units) for asked in ([*models, huge], models)
    )
    for packing in (with_it, without):
        packing.put(0, packing.instance.index["a"], 2.0)

    assert key_of(with_it) == key_of(without)
    assert key_of(with_it)[0] == 1
    assert key_of(with_it)[2] == 1.0


def test_key__running_replica_has_moved__counts_its_part_of_what_runs() -> None:
    units = [make_unit(f"u{i}") for i in range(3)]
    models = [make_model(m) for m in "ab"]
    packing = Packing.of_units(make_instance(units, models, Estimator()), units)
    packing.put(0, 0, 1.0)
    packing.put(1, 1, 1.0)
    packing.mark_running()
    stays = key_of(packing)
    packing.take(0, 0)
    packing.put(2, 0, 1.0)

    assert stays[1] == 0.0
    assert key_of(packing)[1] == pytest.approx(0.05)
    assert key_of(packing)[2] == 0.0
