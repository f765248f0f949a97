"""Invariant 6: tokens depend on neither policy, partition, slicing, batching, preemption nor quota."""

import threading
from dataclasses import replace

import pytest
import torch
from cpu_rig import cores_of_this_process, make_device
from measured_cpu import measured_cpu
from transformers import AutoModelForCausalLM
from transformers_greedy import greedy_tokens

from pdmux_actor.engine import build_engine
from pdmux_actor.executor.lanes import available_cores
from pdmux_actor.executor.torch_cpu import TorchCpuExecutor
from pdmux_actor.messages import GenerateRequest, LogitsProcessing, SamplingParams, Slo
from pdmux_actor.model_info import ModelSource
from pdmux_actor.scheduling.events import Arrival, AttachModel, SetPolicy, Stop
from pdmux_actor.scheduling.policies.registry import POLICIES
from pdmux_actor.scheduling.settings import SchedulerSettings
from profiler.roofline import RooflineLatency

NUM_REQUESTS = 17
MAX_TOKENS = 16
BAD_WORDS = ((33,), (120, 121), (50, 51, 52))
# Of every fifth request each. transformers' generation knows the first by the same names.
AS_TRANSFORMERS = LogitsProcessing(repetition_penalty=1.4, bad_words=BAD_WORDS)
COUNTED = LogitsProcessing(frequency_penalty=0.9, presence_penalty=0.6, min_p=0.02, logit_bias=((90, 3.0), (8, -50.0)))
PROCESSING = {1: AS_TRANSFORMERS, 2: COUNTED}


def make_requests(models, *, tbt_s):
    """Prompts of 1 to 700 tokens; every third request samples with a seed, two of five have their logits changed."""
    lengths = [1, 700, 2, 33, 64, 65, 127, 140, 5, 17, 201, 31, 32, 90, 8, 150, 3]
    for i in range(NUM_REQUESTS):
        for number, model in enumerate(models):
            length = lengths[(i + 5 * number) % len(lengths)]
            yield GenerateRequest(
                request_id=f"{model}/{i}",
                model=model,
                prompt_token_ids=tuple((7 * i + 3 * j + number) % 200 + 20 for j in range(length)),
                sampling=SamplingParams(
                    max_tokens=MAX_TOKENS,
                    temperature=0.0 if i % 3 else 0.8,
                    seed=i,
                    ignore_eos=True,
                    processing=PROCESSING.get(i % 5),
                ),
                slo=Slo(ttft_s=5.0, tbt_s=tbt_s),
            )


def run_engine(checkpoints, requests, *, policy, changes=(), quota_tokens=8000, settings=None, told=None, weights=None):
    """Answers all requests on a real engine; returns tokens by request and the last load report. Events go to the list
    `told`, too. `weights` are formats by model. One sequence at a time needs one core.
    """
    is_lone = settings is not None and settings.max_running_sequences == 1
    executor = TorchCpuExecutor(
        kv_pool_bytes=128 << 20,  # what the quotas of three models promise, and little more: it is written all over
        block_bytes=8192,
        default_dtype="float32",
        cores=cores_of_this_process()[:1] if is_lone else None,
        device=make_device(1) if is_lone else measured_cpu(),
    )
    tokens = {r.request_id: [] for r in requests}
    ends = dict.fromkeys(tokens, 0)
    all_done = threading.Event()

    def outbox(events):
        if told is not None:
            told.extend(events)
        for event in events:
            assert event.error is None, event.error
            tokens[event.request_id] += [t.token_id for t in event.tokens]
            ends[event.request_id] += event.finish is not None
        if all(ends.values()):
            all_done.set()

    settings = settings or SchedulerSettings(max_batch_tokens=512, chunk_budget_tokens=64)
    loop, inbox = build_engine(
        executor, policy=policy, settings=settings, latency=RooflineLatency(executor.device), outbox=outbox
    )
    for model, path in checkpoints.items():
        info = executor.load_model(
            ModelSource(model=model, source=str(path), max_model_len=1024, weights=(weights or {}).get(model))
        )
        quota_rows = -(-quota_tokens // info.geometry.tokens_per_row)
        inbox.put(AttachModel(info, quota_rows * info.geometry.blocks_per_row))
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        for i, request in enumerate(requests):
            inbox.put(Arrival(request))
            for event in changes[i : i + 1]:
                inbox.put(event)
        assert all_done.wait(240), f"unanswered: {[r for r, n in ends.items() if not n]}"
    finally:
        inbox.put(Stop())
        thread.join(30)
    assert set(ends.values()) == {1}
    report = loop.scheduler.load_report()
    assert report.free_blocks + report.cached_blocks == report.total_blocks
    return tokens, report


@pytest.fixture(scope="module")
def expected(demo_checkpoints):
    """Each request on an engine by itself, whole prefill, nothing beside it."""
    requests = list(make_requests(demo_checkpoints, tbt_s=1.0))
    one_by_one = SchedulerSettings(max_running_sequences=1)
    tokens, _ = run_engine(demo_checkpoints, requests, policy="prefill_first", settings=one_by_one)
    return tokens


def test_reference__greedy_requests__equal_transformers(demo_checkpoints, expected):
    for model, path in demo_checkpoints.items():
        reference = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        for request in make_requests(demo_checkpoints, tbt_s=1.0):
            processing = request.sampling.processing
            if request.sampling.temperature or request.model != model or processing is COUNTED:
                continue
            ours, changed = expected[request.request_id], {}
            if processing is not None:
                changed = {"repetition_penalty": 1.4, "bad_words_ids": [list(word) for word in BAD_WORDS]}
            likely = None if changed else ours
            theirs = greedy_tokens(reference, request.prompt_token_ids, MAX_TOKENS, likely=likely, **changed)
            assert ours == theirs, request.request_id


@pytest.mark.parametrize(
    ("policy", "tbt_s"), [*((policy, 0.001) for policy in sorted(POLICIES)), ("mux", 1.0), ("duetserve", 1.0)]
)
def test_engine__any_policy__same_tokens(demo_checkpoints, expected, policy, tbt_s):
    requests = list(make_requests(demo_checkpoints, tbt_s=tbt_s))

    tokens, _ = run_engine(demo_checkpoints, requests, policy=policy)

    assert tokens == expected


@pytest.mark.skipif(len(available_cores()) < 2, reason="needs two cores")
@pytest.mark.parametrize("policy", ["adbs", "mux"])
def test_engine__models_decode_at_once__same_tokens(demo_checkpoints, expected, policy):
    requests = list(make_requests(demo_checkpoints, tbt_s=0.001))
    settings = SchedulerSettings(max_batch_tokens=512, chunk_budget_tokens=64, decode_lanes=4)

    # Launches overlap where the policy sees that it pays, which a machine busy with other tests may hide.
    for _ in range(3):
        tokens, report = run_engine(demo_checkpoints, requests, policy=policy, settings=settings)
        assert tokens == expected
        if policy != "adbs" or report.decode_launches_at_once > 1.0:  # exactly 1 where none overlaps
            return
    pytest.fail("adbs ran no two decode launches at once in three engines")


def test_engine__little_memory_and_changing_policies__same_tokens(demo_checkpoints, expected):
    short = [r for r in make_requests(demo_checkpoints, tbt_s=0.002) if len(r.prompt_token_ids) < 140]
    requests = list(reversed(short))
    names = sorted(POLICIES)
    changes = [SetPolicy(names[i % len(names)]) for i in range(len(requests))]

    tokens, report = run_engine(
        demo_checkpoints,
        requests,
        policy="mux",
        changes=changes,
        quota_tokens=320,
        settings=SchedulerSettings(
            max_batch_tokens=1024, chunk_budget_tokens=50, kv_watermark=0.0, kv_lendable_share=0.0, decode_lanes=3
        ),
    )

    assert tokens == {r.request_id: expected[r.request_id] for r in requests}
    assert sum(m.preemptions_total for m in report.models) > 0


@pytest.mark.parametrize("kept_tokens", [1, 9])
def test_engine__goes_on_after_another_units_tokens__same_tokens(demo_checkpoints, expected, kept_tokens):
    requests = [
        replace(r, output_token_ids=tuple(expected[r.request_id][:kept_tokens]))
        for r in make_requests(demo_checkpoints, tbt_s=1.0)
    ]

    tokens, _ = run_engine(demo_checkpoints, requests, policy="mux")

    assert tokens == {request_id: ids[kept_tokens:] for request_id, ids in expected.items()}


def test_engine__second_turns_of_conversations__cache_hits_change_no_token(demo_checkpoints, expected):
    first = [r for r in make_requests(demo_checkpoints, tbt_s=0.005) if len(r.prompt_token_ids) > 60]
    second = [
        replace(
            r,
            request_id=f"{r.request_id}/again",
            prompt_token_ids=(*r.prompt_token_ids, *expected[r.request_id], 50, 51, 52),
        )
        for r in first
    ]
    cold, _ = run_engine(demo_checkpoints, second, policy="mux", settings=SchedulerSettings(prefix_cache=False))

    # One sequence per model at a time, so that the first turns are over, and cached, when the second ones start.
    one_by_one = SchedulerSettings(max_running_sequences=1, max_batch_tokens=512)
    warm, report = run_engine(demo_checkpoints, [*first, *second], policy="mux", settings=one_by_one)

    assert {r.request_id: warm[r.request_id] for r in second} == cold
    assert sum(m.prefix_hit_tokens_total for m in report.models) > 0.8 * sum(len(r.prompt_token_ids) for r in first)
