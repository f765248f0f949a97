"""When a plan is worth moving for: a fleet's average hides one model of many."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from fleet_model import catalog_model
from test_following_demand import LLAMA_7B

from deploy.control.control_rules import ControlRules
from deploy.control.plan_choice import Needs
from deploy.control.plan_worth import Appraisal, MovePrice, gain_in_words, is_worth_moving, move_price
from placement.demand import ModelDemand
from placement.estimation.model_floors import lifts_a_model
from placement.plan import ModelPlacement, Plan, UnitCapacity, UnitPlan

GIB = 2**30
RULES = ControlRules()
RATES = {"hot": 120.0} | {f"m{i}": 20.0 for i in range(99)}


def appraisal(served: Mapping[str, float], *, in_time: float) -> Appraisal:
    return Appraisal(share_in_time=in_time, served_share={m: served.get(m, 1.0) for m in RATES}, asked_per_s=RATES)


def reading(gib: int) -> MovePrice:
    """Onto units that have room."""
    return MovePrice(read_bytes=gib * GIB, interrupted=0.0)


def unit(unit_id: str, *, asleep: str = "") -> UnitCapacity:
    return UnitCapacity(
        unit_id=unit_id,
        num_gpus=1,
        memory_bytes=48 * GIB,
        block_bytes=8192,
        total_blocks=1000,
        asleep=dict.fromkeys(asleep, 1.0),
    )


def plan(*held: str) -> Plan:
    """What u1, u2, ... hold, a letter for a model."""
    return Plan(
        units=tuple(
            UnitPlan(unit_id=f"u{i}", models=tuple(ModelPlacement(model=m, quota_blocks=1) for m in models))
            for i, models in enumerate(held, start=1)
        )
    )


STARVED = appraisal({"hot": 0.47}, in_time=0.94)


def test_is_worth_moving__one_of_a_hundred_is_served_half__is_worth_it_whatever_it_costs() -> None:
    better = appraisal({"hot": 0.71}, in_time=0.945)

    assert is_worth_moving(STARVED, better, reading(1000), RULES)


@pytest.mark.parametrize(("gib", "worth"), [(10, True), (200, False)])
def test_is_worth_moving__few_late_requests_fewer__depends_on_what_is_loaded(gib: int, worth: bool) -> None:
    better = appraisal({"hot": 0.52}, in_time=0.941)  # 6 requests a second

    assert is_worth_moving(STARVED, better, reading(gib), RULES) is worth


def test_is_worth_moving__nothing_gained_and_nothing_loaded__is_not() -> None:
    assert not is_worth_moving(STARVED, STARVED, reading(0), RULES)


def test_is_worth_moving__one_is_lifted_and_more_requests_are_late_in_all__is_not() -> None:
    robbed = {f"m{i}": 0.8 for i in range(20)}

    assert not is_worth_moving(STARVED, appraisal({"hot": 0.71, **robbed}, in_time=0.93), reading(0), RULES)


@pytest.mark.parametrize(("robbed", "worth"), [(5, True), (20, False)])
def test_is_worth_moving__one_is_fed_for_requests_of_others__is_while_they_are_few(robbed: int, worth: bool) -> None:
    """A model that is not served at all counts as much as one of a hundred; each robbed one gives up 2 of 2,100/s."""
    rare = {**RATES, "hot": 1.0}
    shares = ({"hot": 0.0}, {"hot": 0.6} | {f"m{i}": 0.9 for i in range(robbed)})
    now, then = (replace(appraisal(s, in_time=0.99), asked_per_s=rare) for s in shares)

    assert is_worth_moving(now, then, reading(1000), RULES) is worth


def test_is_worth_moving__whole_fleet_gains__is_worth_it() -> None:
    assert is_worth_moving(STARVED, appraisal({"hot": 0.5}, in_time=0.97), reading(1000), RULES)


@pytest.mark.parametrize(("interrupted", "worth"), [(1000.0, True), (2000.0, False)])
def test_is_worth_moving__one_is_lifted__is_if_a_minute_of_it_is_more_than_moves_interrupt(
    interrupted: float, worth: bool
) -> None:
    better = appraisal({"hot": 0.71}, in_time=0.945)  # 28.8 requests a second

    price = MovePrice(read_bytes=1000 * GIB, interrupted=interrupted)
    assert is_worth_moving(STARVED, better, price, RULES) is worth


@pytest.mark.parametrize(("interrupted", "worth"), [(3000.0, True), (4000.0, False)])
def test_is_worth_moving__whole_fleet_gains__is_if_a_minute_of_it_is_more_than_moves_interrupt(
    interrupted: float, worth: bool
) -> None:
    better = appraisal({"hot": 0.5}, in_time=0.97)  # 0.03 of 2,100 a second

    assert is_worth_moving(STARVED, better, MovePrice(read_bytes=1000 * GIB, interrupted=interrupted), RULES) is worth


def test_move_price__who_makes_room_is_missed_while_weights_are_read_in_its_place() -> None:
    demands = [ModelDemand(model=m, rate_per_s=6.0, prompt_tokens=100, output_tokens=10) for m in "abc"]
    models = tuple(p for d in demands if (p := catalog_model(d.model, spec=LLAMA_7B).placement(d)) is not None)
    needs = Needs(units=(unit("u1"), unit("u2"), unit("u3", asleep="c")), models=models)
    goal = plan("a", "ab", "b")
    of_one = LLAMA_7B.weight_bytes

    assert move_price(needs, goal, plan("ac", "ab", "b")) == MovePrice(read_bytes=of_one, interrupted=0.0)
    swapped = move_price(needs, goal, plan("c", "ab", "b"))
    assert swapped.interrupted == pytest.approx(3.0 * of_one / 2e9)  # half of its requests: the other home goes on
    assert move_price(needs, goal, plan("a", "ab", "c")) == MovePrice(read_bytes=0, interrupted=0.0)


def test_lifts_a_model__two_take_from_each_other__at_most_one_way() -> None:
    one, other = np.array([0.4, 0.9, 1.0]), np.array([0.9, 0.4, 1.0])

    assert not (lifts_a_model(one, other, 0.1) and lifts_a_model(other, one, 0.1))
    assert lifts_a_model(one, np.array([0.6, 0.7, 1.0]), 0.1)
    assert not lifts_a_model(np.array([0.6, 0.7, 1.0]), one, 0.1)


def test_gain_in_words__names_who_gains_most() -> None:
    told = gain_in_words(STARVED, appraisal({"hot": 0.71}, in_time=0.945))

    assert told == "94.5% of it in time instead of 94.0%, 71% of hot served instead of 47%"
