"""Fused steps that take uneven times: what is predicted of them is a mean, what counts is the longest."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from engine_rig import INFOS, VirtualEngine, make_request
from model_shapes import LLAMA_3_8B
from test_kept_predictions import sequence
from test_requests_in_time import NeedsAllSms

from pdmux_actor.scheduling.events import Arrival
from pdmux_actor.scheduling.launch import Chunk, LaunchCompletion, MixedStep
from pdmux_actor.scheduling.launches_in_flight import LaunchInFlight
from pdmux_actor.scheduling.prediction import LatencyPredictor
from profiler.gpus.h100 import DEVICE as H100
from profiler.roofline import RooflineLatency
from profiler.specs import ModelSpec

STEADY = 1 / 0.95


def teach(predictor: LatencyPredictor, model: str, spec: ModelSpec, sms: int, ratios: Sequence[float]) -> None:
    for ratio in ratios:
        launch = MixedStep(model=model, chunks=(Chunk(sequence(), 0, 30),), sequences=(sequence(),))
        modelled_s = predictor.modelled_s(spec, launch, sms)
        flight = LaunchInFlight(launch=launch, sms=sms, modelled_s=modelled_s, took_off_s=0.0)
        predictor.learn(flight, LaunchCompletion(launch=launch, started_s=0.0, finished_s=ratio * modelled_s))


def spread_after(ratios: Sequence[float]) -> float:
    predictor = LatencyPredictor(RooflineLatency(H100))
    teach(predictor, "m", LLAMA_3_8B, 132, ratios)
    return predictor.mixed_spread("m")


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_mixed_spread__steps_as_predicted_but_for_a_factor__is_that_of_a_steady_machine(factor: float) -> None:
    assert spread_after([factor] * 40) == STEADY


def test_mixed_spread__every_other_step_longer__is_by_how_much() -> None:
    assert spread_after([0.8, 1.2] * 20) == pytest.approx(1.3, abs=0.1)  # of what is expected, which is between


def test_mixed_spread__one_stall_of_many_steps__is_that_of_a_steady_machine() -> None:
    assert spread_after([1.0] * 20 + [4.0] + [1.0] * 10) == STEADY


def longest_gap_s(ratios: Sequence[float]) -> float:
    """Of four sequences beside which a prompt of 120 tokens is cut, where earlier fused steps took `ratios`."""
    running = [make_request(f"r{i}", first=i + 2, max_tokens=60, ttft_s=10.0, tbt_s=0.018) for i in range(4)]
    prompt = make_request("prompt", first=1, prompt_tokens=120, max_tokens=20, ttft_s=10.0, tbt_s=0.018)
    events = [*((0.0, Arrival(r)) for r in running), (0.2, Arrival(prompt))]
    engine = VirtualEngine(events, quota_blocks=600, latency=NeedsAllSms())
    teach(engine.scheduler._predictor, "a", INFOS["a"].spec, 2, ratios)
    engine.run()
    of_tokens = zip(engine.token_events, engine.event_times_s, strict=True)
    times_s = [at_s for event, at_s in of_tokens if event.request_id == "r0"]
    return max(later - earlier for earlier, later in pairwise(times_s))


def test_prompt__fused_steps_have_taken_uneven_times__is_cut_so_that_the_longer_ones_would_be_in_time() -> None:
    steady_s, uneven_s = longest_gap_s([1.0] * 20), longest_gap_s([0.9, 1.1] * 10)

    assert 0.0155 < steady_s <= 0.95 * 0.018
    assert 1.1 * uneven_s <= 0.95 * 0.018
