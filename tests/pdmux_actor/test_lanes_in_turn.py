"""Lanes take the device in turn where side by side decode misses its target, and prompts are too long to be fused."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from engine_rig import INFOS, PLAIN, LinearLatency, VirtualEngine, make_request
from test_kept_predictions import sequence

from pdmux_actor.scheduling.decision import Decision
from pdmux_actor.scheduling.events import Arrival
from pdmux_actor.scheduling.launch import Chunk, LaunchCompletion, PrefillSlice
from pdmux_actor.scheduling.launches_in_flight import LaunchInFlight
from pdmux_actor.scheduling.prediction import LatencyPredictor
from profiler.specs import ModelSpec

TARGET_S, CAME_S = 0.05, 0.2
PROMPTS = ("p", "q")


class NeedsAllSms(LinearLatency):
    """Decode takes 10 ms on the whole device, `on_half_s` on half of it. No part of a prompt fits into a step."""

    def __init__(self, on_half_s: float) -> None:
        super().__init__(prefill_fixed_s=0.06)
        self._on_half_s = on_half_s

    def decode_s(self, spec: ModelSpec, context_tokens: Sequence[int], sms: int) -> float:
        return 0.01 if sms == 2 else self._on_half_s


def engine_of(*, tbt_s: float = TARGET_S, on_half_s: float = 0.06, layer_slicing: bool = True) -> VirtualEngine:
    """Two answers of 60 tokens, and two prompts of 200, which take 100 ms each on the whole device."""
    running = [make_request(f"r{i}", first=i + 2, max_tokens=60, ttft_s=10.0, tbt_s=tbt_s) for i in range(2)]
    prompts = [
        make_request(name, first=i + 8, prompt_tokens=200, max_tokens=4, ttft_s=10.0, tbt_s=tbt_s)
        for i, name in enumerate(PROMPTS)
    ]
    events = [*((0.0, Arrival(r)) for r in running), *((CAME_S, Arrival(p)) for p in prompts)]
    settings = replace(PLAIN, layer_slicing=layer_slicing)
    return VirtualEngine(events, quota_blocks=600, settings=settings, latency=NeedsAllSms(on_half_s))


def slices_of(engine: VirtualEngine) -> list[Decision]:
    return [d for d in engine.scheduler.log.decisions() if d.kind == "prefill" and set(PROMPTS) & set(d.request_ids)]


def longest_gap_s(engine: VirtualEngine, request_id: str) -> float:
    of_tokens = zip(engine.token_events, engine.event_times_s, strict=True)
    return max(b - a for a, b in pairwise([at_s for event, at_s in of_tokens if event.request_id == request_id]))


def most_layers(engine: VirtualEngine) -> int:
    return max(d.last_layer - d.first_layer for d in slices_of(engine))


def teach(predictor: LatencyPredictor, spec: ModelSpec, ratios: Sequence[float]) -> None:
    for ratio in ratios:
        launch = PrefillSlice(
            model="a", batch_id=0, chunks=(Chunk(sequence(), 0, 30),), first_layer=0, last_layer=spec.num_layers
        )
        modelled_s = predictor.modelled_s(spec, launch, 2)
        flight = LaunchInFlight(launch=launch, sms=2, modelled_s=modelled_s, took_off_s=0.0)
        predictor.learn(flight, LaunchCompletion(launch=launch, started_s=0.0, finished_s=ratio * modelled_s))


def test_long_prompts__decode_beside_them_would_be_late__lanes_take_turns_and_every_request_is_in_time() -> None:
    engine = engine_of().run()

    assert {d.prefill_sms for d in slices_of(engine)} == {2}
    assert longest_gap_s(engine, "r0") <= TARGET_S
    (load,) = engine.scheduler.load_report().models
    assert (load.requests_ended_total, load.requests_in_time_total) == (4, 4)


def test_long_prompts__decode_beside_them_is_in_time__lanes_are_side_by_side() -> None:
    engine = engine_of(on_half_s=0.012).run()

    assert {d.prefill_sms for d in slices_of(engine)} == {1}


def test_long_prompts__are_not_sliced__lanes_do_not_take_turns() -> None:
    engine = engine_of(layer_slicing=False).run()

    assert {d.prefill_sms for d in slices_of(engine)} <= {1}


def test_lanes_in_turn__slices_have_taken_uneven_times__take_turns_more_often() -> None:
    steady, uneven = engine_of(tbt_s=0.07), engine_of(tbt_s=0.07)
    teach(uneven.scheduler._predictor, INFOS["a"].spec, [0.8, 1.2] * 10)

    assert most_layers(steady.run()) == 2
    assert most_layers(uneven.run()) == 1
