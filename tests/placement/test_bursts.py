"""Bursty arrivals: what the estimate makes of them, and where they come from."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from llama_fleets import ESTIMATOR, LLAMA_7B, llm, nodes

from placement.estimation.plan_estimate import FleetEstimate, estimate
from placement.estimation.served_bound import most_served
from placement.estimation.throughput import Limit
from placement.plan import ModelPlacement, Plan, UnitCapacity, UnitPlan
from placement.problem import PlacementModel
from traces.record import TraceRecord

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from planning.simulated import demand_of_trace

RATE_PER_S = 4.0


def asked(arrival_cv: float) -> PlacementModel:
    """Prompts that take a good part of a tight TTFT, so that waits for the prefill lane are what limits a unit."""
    model = llm("m", LLAMA_7B, rate_per_s=RATE_PER_S, ttft_s=0.6, max_replicas=4)
    return replace(
        model,
        demand=replace(model.demand, prompt_tokens=1500.0, output_tokens=20.0, arrival_cv=arrival_cv),
    )


def units(count: int) -> list[UnitCapacity]:
    return [nodes().unit(0, gpu, 1) for gpu in range(count)]


def on(count: int, arrival_cv: float) -> FleetEstimate:
    """A replica on each of so many units."""
    placed = tuple(
        UnitPlan(unit_id=u.unit_id, models=(ModelPlacement(model="m", quota_blocks=u.total_blocks),))
        for u in units(count)
    )
    return estimate(units(count), [asked(arrival_cv)], Plan(units=placed), ESTIMATOR)


def test_estimate__bursty_arrivals__less_headroom_by_the_waits_for_prefill() -> None:
    smooth, bursty = on(1, 1.0).units[0], on(1, 4.0).units[0]

    assert smooth.limit is bursty.limit is Limit.TTFT
    assert bursty.headroom < 0.6 * smooth.headroom


def test_estimate__smoother_than_poisson__counts_as_poisson() -> None:
    assert on(1, 0.2) == on(1, 1.0)


def test_estimate__replicas_of_a_bursty_model__gain_more_than_those_of_a_smooth_one() -> None:
    """Two replicas halve the load, and each sees a smoother half."""

    def gain(arrival_cv: float) -> float:
        return min(u.headroom for u in on(2, arrival_cv).units) / on(1, arrival_cv).units[0].headroom

    assert gain(1.0) == pytest.approx(2.0)
    assert gain(4.0) > 2.2


@pytest.mark.parametrize("arrival_cv", [0.0, 1.0, 4.0, 50.0])
def test_bound__any_burstiness__no_plan_exceeds_it(arrival_cv: float) -> None:
    model = asked(arrival_cv)
    hot = replace(model, demand=replace(model.demand, rate_per_s=60.0))
    placed = tuple(
        UnitPlan(unit_id=u.unit_id, models=(ModelPlacement(model="m", quota_blocks=u.total_blocks),)) for u in units(3)
    )
    found = estimate(units(3), [hot], Plan(units=placed), ESTIMATOR)

    assert found.served_per_s < 60.0
    assert found.served_per_s <= most_served(units(3), [hot], ESTIMATOR) * 1.000001


def test_demand_of_trace__requests_in_bunches__says_how_bursty() -> None:
    bunches = [
        TraceRecord(arrival_s=10.0 * i + 0.1 * j, input_tokens=9, output_tokens=9) for i in range(9) for j in range(5)
    ]
    even = [TraceRecord(arrival_s=2.0 * i, input_tokens=9, output_tokens=9) for i in range(45)]
    few = bunches[:6]

    (bursty,), (smooth,), (unknown,) = (
        demand_of_trace(trace, duration_s=90.0, default_model="m") for trace in (bunches, even, few)
    )

    assert bursty.arrival_cv > 1.8
    assert smooth.arrival_cv == 0.0
    assert unknown.arrival_cv == 1.0
