"""Predictions that are kept must be those that would be made anew."""

import tracemalloc
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from model_shapes import LLAMA_3_8B

from pdmux_actor.messages import GenerateRequest, SamplingParams, Slo
from pdmux_actor.scheduling.launch import Chunk, DecodeStep, LaunchCompletion, PrefillSlice
from pdmux_actor.scheduling.launches_in_flight import LaunchInFlight
from pdmux_actor.scheduling.prediction import LatencyPredictor
from pdmux_actor.scheduling.sequence import TokenSequence
from profiler.gpus.h100 import DEVICE as H100
from profiler.latency import ChunkShape
from profiler.roofline import RooflineLatency

SHARES = (16, 66, 132)
BESIDE = [ChunkShape(500, 20)]
BATCHES = st.lists(st.integers(1, 4000), min_size=1, max_size=20)
LESSONS = st.tuples(BATCHES, st.sampled_from(SHARES), st.floats(0.001, 0.2), st.booleans())


def sequence() -> TokenSequence:
    request = GenerateRequest(
        request_id="r",
        model="m",
        prompt_token_ids=(1,),
        sampling=SamplingParams(max_tokens=1),
        slo=Slo(ttft_s=1.0, tbt_s=0.1),
    )
    return TokenSequence.from_request(request, 0.0)


def teach(predictor: LatencyPredictor, contexts: list[int], sms: int, seconds: float, beside: list[ChunkShape]) -> None:
    launch = DecodeStep(model="m", sequences=tuple(sequence() for _ in contexts))
    company_s = seconds if beside else 0.0
    flight = LaunchInFlight(
        launch=launch,
        sms=sms,
        modelled_s=0.01,
        took_off_s=0.0,
        contexts=contexts,
        company_s=company_s,
        beside=beside,
    )
    predictor.learn(flight, LaunchCompletion(launch=launch, started_s=0.0, finished_s=seconds))


@given(
    st.lists(st.tuples(BATCHES, st.sampled_from(SHARES), st.floats(0.001, 0.2), st.booleans()), max_size=12), BATCHES
)
def test_predictor__asked_between_lessons__says_what_one_that_was_not_asked_says(lessons, asked):
    curious, taught_only = LatencyPredictor(RooflineLatency(H100)), LatencyPredictor(RooflineLatency(H100))
    for contexts, sms, seconds, together in lessons:
        for share in SHARES:
            curious.decode_s("m", LLAMA_3_8B, asked, share)
            curious.decode_s("m", LLAMA_3_8B, asked, share, beside=BESIDE)
        for predictor in (curious, taught_only):
            teach(predictor, contexts, sms, seconds, BESIDE if together else [])

    for share in SHARES:
        for beside in ((), BESIDE):
            said_s = [p.decode_s("m", LLAMA_3_8B, asked, share, beside=beside) for p in (curious, taught_only)]
            assert said_s[0] == said_s[1]


CHUNKS = st.lists(st.builds(ChunkShape, st.integers(1, 4000), st.integers(0, 4000)), min_size=1, max_size=4)


def teach_prefill(predictor: LatencyPredictor, tokens: int, sms: int, seconds: float, *, beside_decode: bool) -> None:
    chunks = (Chunk(sequence(), 0, tokens),)
    launch = PrefillSlice(batch_id=1, model="m", chunks=chunks, first_layer=0, last_layer=8)
    company_s = seconds if beside_decode else 0.0
    flight = LaunchInFlight(launch=launch, sms=sms, modelled_s=0.01, took_off_s=0.0, company_s=company_s)
    predictor.learn(flight, LaunchCompletion(launch=launch, started_s=0.0, finished_s=seconds))


@given(
    st.lists(
        st.tuples(st.integers(1, 4000), st.sampled_from(SHARES), st.floats(0.001, 0.2), st.booleans()), max_size=12
    ),
    CHUNKS,
)
def test_predictor__prefills_asked_between_lessons__are_those_of_one_that_was_not_asked(lessons, asked):
    curious, taught_only = LatencyPredictor(RooflineLatency(H100)), LatencyPredictor(RooflineLatency(H100))
    for tokens, sms, seconds, beside in lessons:
        for share in SHARES:
            curious.prefill_s("m", LLAMA_3_8B, asked, share, beside_decode=beside)
        for predictor in (curious, taught_only):
            teach_prefill(predictor, tokens, sms, seconds, beside_decode=beside)
            teach(predictor, [tokens], sms, seconds, [])

    for share in SHARES:
        for beside in (False, True):
            said_s = [p.prefill_s("m", LLAMA_3_8B, asked, share, beside_decode=beside) for p in (curious, taught_only)]
            assert said_s[0] == said_s[1]


@given(st.lists(st.tuples(CHUNKS, st.sampled_from(SHARES)), min_size=1, max_size=12))
def test_predictor__prefills_asked_again_and_again__are_those_of_the_latency_model(asked):
    latency = RooflineLatency(H100)
    predictor = LatencyPredictor(latency)
    for model, spec in (("m", LLAMA_3_8B), ("m", replace(LLAMA_3_8B, num_layers=80))):
        for chunks, sms in asked * 2:
            said_s = predictor.prefill_s(model, spec, chunks, sms, beside_decode=False)
            assert said_s == latency.prefill_s(spec, chunks, sms)
        predictor.forget(model)  # another one may come by its name


def test_prefill__thousands_of_prompts_that_never_come_again__take_no_more_memory() -> None:
    predictor = LatencyPredictor(RooflineLatency(H100))

    def predict(first: int) -> None:
        for tokens in range(first, first + 2000):
            predictor.prefill_s("m", LLAMA_3_8B, [ChunkShape(tokens)], 66, beside_decode=False)

    predict(1)
    tracemalloc.start()
    try:
        predict(2001)
        grown_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert grown_bytes < 1_000_000
