"""AlpaServe's simulation and its greedy placement, on sums by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from unittest.mock import patch

import pytest
from counted_latency import COUNTED
from hypothesis import given, settings
from llama_fleets import LLAMA_7B, LLAMA_65B, llm, nodes
from placement_cases import assert_sound, make_model, make_unit, model_lists, unit_lists

from placement.estimation.pipeline_simulation import Arrival, BatchTime, PipelineOutcome, run_pipelines
from placement.plan import UnitCapacity
from placement.problem import PlacementModel
from placement.solvers import alpaserve
from placement.solvers.alpaserve import AlpaServeSolver
from profiler.gpus.a100_80g import DEVICE as A100_80G

ONE_BY_ONE = BatchTime(fixed_s=0.0, per_request_s=4.0, most_requests=1)
BATCHES = BatchTime(fixed_s=1.0, per_request_s=1.0, most_requests=3)


@pytest.mark.parametrize(("deadline_s", "in_time"), [(4.0, 2), (7.9, 2), (8.0, 3)])
def test_pipeline__three_requests_at_once_in_two_stages__two_are_under_way_and_one_waits(
    deadline_s: float, in_time: int
) -> None:
    """Each takes 4 s end to end; the third starts when the first has left."""
    outcome = run_pipelines([{0: ONE_BY_ONE}], [(0.0, 0)] * 3, {0: deadline_s}, stages=[2])

    assert (outcome.in_time[0], outcome.missed[0]) == (in_time, 3 - in_time)
    assert outcome.busy_s == [4.0 * in_time]


def test_batches__requests_that_wait__go_together_the_oldest_model_first() -> None:
    """0 to 2 s: the first of model 0. At 2 s model 1 has waited longest: two of it, to 5 s; then three of model 0, to
    9 s, of which the one that came at 1.5 s has had 7.5 s. The last would end at 11 s.
    """
    arrivals = [(0.0, 0), (1.0, 1), (1.2, 1), (1.5, 0), (1.6, 0), (1.7, 0), (1.8, 0)]

    outcome = run_pipelines([{0: BATCHES, 1: BATCHES}], arrivals, {0: 7.5, 1: 4.0}, stages=[1])

    assert outcome.in_time == {0: 4, 1: 2}
    assert outcome.missed[0] == 1
    assert outcome.busy_s == [2.0 + 3.0 + 4.0]


@pytest.mark.parametrize(("deadline_s", "in_time", "busy_s"), [(2.9, 0, 0), (3.5, 1, 2), (4.9, 2, 3), (5.0, 3, 4)])
def test_batch__all_that_wait_would_be_late_together__as_many_go_as_are_in_time(
    deadline_s: float, in_time: int, busy_s: float
) -> None:
    """They wait from 1 s to 2 s for another model's; one takes 2 s then, two 3 s and three 4 s."""
    arrivals = [(0.0, 1), *[(1.0, 0)] * 3]

    outcome = run_pipelines([{0: BATCHES, 1: BATCHES}], arrivals, {0: deadline_s, 1: 2.0}, stages=[1])

    assert (outcome.in_time[0], outcome.missed[0]) == (in_time, 3 - in_time)
    assert outcome.busy_s == [2.0 + busy_s]


def test_dispatch__two_groups_hold_the_model__the_shorter_queue_is_taken() -> None:
    times = {0: ONE_BY_ONE}

    outcome = run_pipelines([times, times, {}], [(0.0, 0), (0.1, 0), (0.2, 1)], {0: 4.0, 1: 9.0}, stages=[1, 1, 1])

    assert (outcome.in_time[0], outcome.missed[1]) == (2, 1)
    assert outcome.busy_s == [4.0, 4.0, 0.0]


def test_greedy__one_model_is_asked_for_more_than_a_gpu_bears__it_gets_the_idle_gpu_too() -> None:
    """A GPU bears 1 / (20 ms + 80 steps * 1 ms) = 10 requests/s of full batches at most."""
    models = [make_model("cold", rate_per_s=0.1, max_replicas=2), make_model("hot", rate_per_s=11, max_replicas=2)]
    units = [make_unit(u, memory_mib=1 << 14, total_blocks=1 << 16, device=A100_80G) for u in ("u0", "u1")]

    plan = AlpaServeSolver(estimator=COUNTED).solve(units, models, None)

    assert plan.units_of("hot") == ("u0", "u1")
    assert len(plan.units_of("cold")) == 1


def test_greedy__everything_is_in_time__no_replica_is_added() -> None:
    models = [make_model(name, rate_per_s=0.1, max_replicas=2) for name in "ab"]
    units = [make_unit(u, memory_mib=1 << 14, total_blocks=1 << 16, device=A100_80G) for u in ("u0", "u1")]

    plan = AlpaServeSolver(estimator=COUNTED).solve(units, models, None)

    assert [len(plan.units_of(m)) for m in "ab"] == [1, 1]


def test_partition__model_of_65b__has_groups_that_hold_it() -> None:
    models = [llm("small", LLAMA_7B, rate_per_s=2), llm("large", LLAMA_65B, rate_per_s=0.2)]

    layout = AlpaServeSolver(most_requests=300).lay_out([nodes(1)], models)

    assert_sound(layout.plan, list(layout.units), models)
    assert layout.plan.unplaced == {}
    assert {u.num_gpus for u in layout.units} <= {4, 8}


def test_partition__model_that_small_groups_do_not_hold__has_its_place_whatever_they_serve_of_another() -> None:
    models = [llm("small", LLAMA_7B, rate_per_s=60), llm("large", LLAMA_65B, rate_per_s=0.01)]

    layout = AlpaServeSolver(most_requests=300).lay_out([nodes(1)], models)

    assert layout.plan.unplaced == {}


def test_partition__larger_groups_are_faster__slow_ones_are_not_given_more_time() -> None:
    """A pipeline's request takes longer alone: its deadline, and so the requests that count, are those of all."""
    models = [llm("m", LLAMA_7B, rate_per_s=8)]
    given: list[tuple[float, int]] = []

    def seen(
        groups: Sequence[Mapping[int, BatchTime]],
        arrivals: Sequence[Arrival],
        deadlines_s: Mapping[int, float],
        *,
        stages: Sequence[int],
    ) -> PipelineOutcome:
        given.append((deadlines_s[0], len(arrivals)))
        return run_pipelines(groups, arrivals, deadlines_s, stages=stages)

    with patch.object(alpaserve, "run_pipelines", seen):
        AlpaServeSolver().lay_out([nodes(1)], models)

    assert len(given) > 4
    assert len({*given}) == 1


def test_time_is_up__at_once__required_replicas_are_placed_and_spread_all_the_same() -> None:
    models = [make_model(name, rate_per_s=1.0, max_replicas=2) for name in "abcd"]
    models[0] = replace(models[0], min_replicas=2)
    units = [make_unit(u, memory_mib=1 << 14, total_blocks=1 << 16, device=A100_80G) for u in ("u0", "u1")]

    plan = AlpaServeSolver(estimator=COUNTED, is_time_up=lambda: True).solve(units, models, None)

    assert_sound(plan, units, models)
    assert plan.unplaced == {}
    assert plan.units_of("a") == ("u0", "u1")
    assert sorted(len(u.models) for u in plan.units) == [2, 3]


def test_time_is_up__small_groups_do_not_hold_a_model__larger_ones_are_still_tried() -> None:
    layout = AlpaServeSolver(is_time_up=lambda: True).lay_out([nodes(1)], [llm("large", LLAMA_65B, rate_per_s=0.1)])

    assert layout.plan.unplaced == {}


@settings(max_examples=15, deadline=None)
@given(units=unit_lists(), models=model_lists())
def test_any_fleet__plan_is_sound(units: list[UnitCapacity], models: list[PlacementModel]) -> None:
    assert_sound(AlpaServeSolver(most_requests=100).solve(units, models, None), units, models)
