"""When a plan is worth moving for: a fleet's average hides one model of many."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from deploy.control.control_rules import ControlRules
from deploy.control.plan_worth import Appraisal, gain_in_words, is_worth_moving
from placement.estimation.lifted_models import lifts_a_model

GIB = 2**30
RULES = ControlRules()
RATES = {"hot": 120.0} | {f"m{i}": 20.0 for i in range(99)}


def appraisal(served: Mapping[str, float], *, in_time: float) -> Appraisal:
    return Appraisal(share_in_time=in_time, served_share={m: served.get(m, 1.0) for m in RATES}, asked_per_s=RATES)


STARVED = appraisal({"hot": 0.47}, in_time=0.94)


def test_is_worth_moving__one_of_a_hundred_is_served_half__is_worth_it_whatever_it_costs() -> None:
    better = appraisal({"hot": 0.71}, in_time=0.945)

    assert is_worth_moving(STARVED, better, 1000 * GIB, RULES)


@pytest.mark.parametrize(("gib", "worth"), [(10, True), (200, False)])
def test_is_worth_moving__few_late_requests_fewer__depends_on_what_is_loaded(gib: int, worth: bool) -> None:
    better = appraisal({"hot": 0.52}, in_time=0.941)  # 6 requests a second

    assert is_worth_moving(STARVED, better, gib * GIB, RULES) is worth


def test_is_worth_moving__nothing_gained_and_nothing_loaded__is_not() -> None:
    assert not is_worth_moving(STARVED, STARVED, 0, RULES)


def test_is_worth_moving__one_is_lifted_and_more_requests_are_late_in_all__is_not() -> None:
    robbed = {f"m{i}": 0.8 for i in range(20)}

    assert not is_worth_moving(STARVED, appraisal({"hot": 0.71, **robbed}, in_time=0.93), 0, RULES)


@pytest.mark.parametrize(("robbed", "worth"), [(5, True), (20, False)])
def test_is_worth_moving__one_is_fed_for_requests_of_others__is_while_they_are_few(robbed: int, worth: bool) -> None:
    """A model that is not served at all counts as much as one of a hundred; each robbed one gives up 2 of 2,100/s."""
    rare = {**RATES, "hot": 1.0}
    shares = ({"hot": 0.0}, {"hot": 0.6} | {f"m{i}": 0.9 for i in range(robbed)})
    now, then = (replace(appraisal(s, in_time=0.99), asked_per_s=rare) for s in shares)

    assert is_worth_moving(now, then, 1000 * GIB, RULES) is worth


def test_is_worth_moving__whole_fleet_gains__is_worth_it() -> None:
    assert is_worth_moving(STARVED, appraisal({"hot": 0.5}, in_time=0.97), 1000 * GIB, RULES)


def test_lifts_a_model__two_take_from_each_other__at_most_one_way() -> None:
    one, other = np.array([0.4, 0.9, 1.0]), np.array([0.9, 0.4, 1.0])

    assert not (lifts_a_model(one, other, 0.1) and lifts_a_model(other, one, 0.1))
    assert lifts_a_model(one, np.array([0.6, 0.7, 1.0]), 0.1)
    assert not lifts_a_model(np.array([0.6, 0.7, 1.0]), one, 0.1)


def test_gain_in_words__names_who_gains_most() -> None:
    told = gain_in_words(STARVED, appraisal({"hot": 0.71}, in_time=0.945))

    assert told == "94.5% of it in time instead of 94.0%, 71% of hot served instead of 47%"
