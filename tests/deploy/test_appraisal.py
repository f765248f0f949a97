"""What a plan is worth to the control loop: who is asked for more than its units can do is late soon."""

from dataclasses import replace

import pytest
from fleet_model import BLOCK_BYTES, catalog_model
from test_following_demand import GIB, LLAMA_7B

from deploy.control.plan_choice import Needs
from deploy.control.plan_worth import Appraisal, Appraiser
from placement.demand import ModelDemand
from placement.estimation.problem_arrays import Estimator
from placement.plan import ModelPlacement, Plan, UnitCapacity, UnitPlan
from profiler.devices import DEVICES

BLOCKS = 8 * GIB // BLOCK_BYTES
PLAN = Plan(
    units=tuple(
        UnitPlan(unit_id=u, models=(ModelPlacement(model=m, quota_blocks=BLOCKS),)) for u, m in (("u", "a"), ("v", "b"))
    )
)


def needs(rate_per_s: float) -> Needs:
    """`a` is asked for so often, `b` once a second; each has an A40 of its own."""
    units = tuple(
        UnitCapacity(
            unit_id=u,
            num_gpus=1,
            memory_bytes=48 * GIB,
            block_bytes=BLOCK_BYTES,
            total_blocks=BLOCKS,
            pool="p",
            node="n",
            device=DEVICES["A40"],
        )
        for u in "uv"
    )
    models = []
    for model, rate in (("a", rate_per_s), ("b", 1.0)):
        demand = ModelDemand(model=model, rate_per_s=rate, prompt_tokens=1400, output_tokens=16)
        placed = catalog_model(model, spec=LLAMA_7B).placement(demand)
        assert placed is not None
        models.append(replace(placed, slo=replace(placed.slo, ttft_s=4.0, tbt_s=0.5)))
    return Needs(units=units, models=tuple(models))


def appraised(asked: Needs) -> Appraisal:
    found = Appraiser(asked, Estimator()).appraise(PLAN)
    return found


def test_share_in_time__units_can_do_what_they_are_asked__is_all() -> None:
    assert appraised(needs(1.0)).share_in_time == 1.0


def most_per_s() -> float:
    """With 99 % in time, by the estimate."""
    return next(r / 20 for r in range(20, 400) if appraised(needs(r / 20)).share_in_time < 1.0)


def test_share_in_time__one_model_asked_for_half_too_much__counts_it_as_late_not_as_mostly_served() -> None:
    assert appraised(needs(1.5 * most_per_s())).share_in_time < 0.4


def test_share_in_time__more_wait_than_one_in_a_hundred_and_no_queue_grows__few_are_late() -> None:
    """The lane is busy for 96 % of the time."""
    found = appraised(needs(1.1 * most_per_s()))

    assert 0.95 < found.share_in_time < 0.995
    assert 0.95 < found.served_share["a"] < 0.995


def test_share_in_time__a_little_more_than_can_be_served__is_a_little_less_than_all() -> None:
    """A step would be taken for a gain that moves of models are worth."""
    low, high = 1.0, most_per_s()
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if appraised(needs(middle)).share_in_time == 1.0 else (low, middle)

    assert 0.999 < appraised(needs(high)).share_in_time < 1.0


def test_share_in_time__overload_grows__falls() -> None:
    values = [appraised(needs(rate)).share_in_time for rate in (5.0, 8.0, 16.0, 32.0)]

    assert values == sorted(values, reverse=True)
    assert values[-1] == pytest.approx(1.0 / 33.0, abs=0.1), "what remains is b"


def test_share_in_time__nobody_asks__is_all() -> None:
    idle = needs(0.0)
    asleep = replace(idle, models=tuple(replace(m, demand=replace(m.demand, rate_per_s=0.0)) for m in idle.models))

    assert appraised(asleep).share_in_time == 1.0
