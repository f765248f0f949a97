"""How probable the tokens of a prompt were: transformers' numbers, whatever policy, chunks, slices and caches do."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from cpu_rig import CpuRig, make_prompt
from engine_rig import PLAIN, VirtualEngine, make_request
from test_token_identity import MAX_TOKENS, make_requests, run_engine
from transformers import AutoModelForCausalLM

from pdmux_actor.executor import prompt_outputs
from pdmux_actor.messages import GenerateRequest, PromptLogprob, SamplingParams
from pdmux_actor.scheduling.events import Arrival, SetPolicy
from pdmux_actor.scheduling.policies.registry import POLICIES
from pdmux_actor.scheduling.settings import SchedulerSettings

ALTERNATIVES = 3


@pytest.fixture(scope="module")
def reference(demo_checkpoints):
    """Log-probabilities [tokens - 1, vocabulary] of each prompt, by model and prompt."""
    known: dict[tuple[str, tuple[int, ...]], torch.Tensor] = {}
    for model, path in demo_checkpoints.items():
        network = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        with torch.inference_mode():
            for request in make_requests(demo_checkpoints, tbt_s=1.0):
                if request.model == model:
                    logits = network(torch.tensor([request.prompt_token_ids])).logits[0, :-1]
                    known[model, request.prompt_token_ids] = logits.log_softmax(dim=-1)
    return known


def asking(requests: list[GenerateRequest]) -> list[GenerateRequest]:
    """Two of three ask; each says first what another one has computed, so that there is a prefix to find."""
    return [
        replace(r, sampling=replace(r.sampling, prompt_logprobs=ALTERNATIVES, logprobs=0)) if i % 3 else r
        for i, r in enumerate(requests)
    ]


def assert_near(said: torch.Tensor, expected: torch.Tensor, *, most: float) -> None:
    """In one go: tokens by the thousand are compared."""
    assert said.shape == expected.shape
    assert bool(((said - expected).abs() <= most).all()), (said - expected).abs().max()


def check(told, requests, reference) -> int:
    """Compares what was told with the reference; returns of how many tokens."""
    given: dict[str, list[PromptLogprob]] = {}
    for event in told:
        if event.prompt_logprobs:
            assert event.request_id not in given, "told twice"
            given[event.request_id] = list(event.prompt_logprobs)
    compared = 0
    for request in requests:
        entries = given.pop(request.request_id, [])
        if request.sampling.prompt_logprobs is None:
            assert entries == []
            continue
        expected = reference[request.model, request.prompt_token_ids]
        assert [e.token_id for e in entries] == list(request.prompt_token_ids[1:])
        told_ids = torch.tensor([e.token_id for e in entries], dtype=torch.int64)[:, None]
        own = expected.gather(1, told_ids)
        assert_near(torch.tensor([[e.logprob] for e in entries]).view(-1, 1), own, most=2e-4)
        ranks = (expected > own).sum(dim=1) + 1
        assert_near(torch.tensor([e.rank for e in entries]), ranks, most=2)  # rounding swaps neighbours
        top = expected.topk(ALTERNATIVES).values
        assert [len(e.top) for e in entries] == [ALTERNATIVES] * len(expected)
        assert_near(torch.tensor([[p for _, p in e.top] for e in entries]).view(-1, ALTERNATIVES), top, most=2e-4)
        compared += len(entries)
    assert not given
    return compared


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_engine__any_policy__prompts_are_as_probable_as_in_transformers(demo_checkpoints, reference, policy) -> None:
    requests = asking(list(make_requests(demo_checkpoints, tbt_s=0.001)))
    told = []

    tokens, _ = run_engine(demo_checkpoints, requests, policy=policy, told=told)

    assert check(told, requests, reference) > 2000
    assert {len(ids) for ids in tokens.values()} == {MAX_TOKENS}


def test_engine__little_memory_changing_policies_and_prefixes__prompts_are_as_probable(
    demo_checkpoints, reference
) -> None:
    short = [r for r in make_requests(demo_checkpoints, tbt_s=0.002) if len(r.prompt_token_ids) < 140]
    silent = [replace(r, request_id=f"{r.request_id}/before") for r in short]
    requests = [*silent, *asking(list(reversed(short)))]
    names = sorted(POLICIES)
    changes = [SetPolicy(names[i % len(names)]) for i in range(len(requests))]
    settings = SchedulerSettings(
        max_batch_tokens=1024, chunk_budget_tokens=50, kv_watermark=0.0, kv_lendable_share=0.0, decode_lanes=3
    )
    told = []

    _, report = run_engine(
        demo_checkpoints, requests, policy="mux", changes=changes, quota_tokens=320, settings=settings, told=told
    )

    assert check(told, requests, reference) > 200
    assert sum(m.preemptions_total for m in report.models) > 0


@pytest.fixture
def rig() -> Iterator[CpuRig]:
    rig = CpuRig()
    yield rig
    rig.close()


def launched(rig: CpuRig, launches) -> dict[int, tuple[PromptLogprob, ...]]:
    for launch in launches:
        rig.executor.submit(launch)
        done = rig.wait()
        assert done.error is None
    return dict(done.prompt_logprobs)


def test_tiles__of_any_size__change_nothing_and_bound_the_logits(rig, demo_checkpoints, monkeypatch) -> None:
    model, folder = next(iter(demo_checkpoints.items()))
    vocab_size = rig.load(model, folder, dtype="float32").spec.vocab_size
    decoder = rig.executor._attached[model].decoder
    rows_at_once: list[int] = []
    logits_of = decoder.logits

    def logits(hidden):
        rows_at_once.append(len(hidden))
        return logits_of(hidden)

    monkeypatch.setattr(decoder, "logits", logits)
    prompts = [make_prompt(70), make_prompt(33, seed=1), make_prompt(1, seed=2)]
    whole, tiled = (
        launched(
            rig,
            rig.prefill_slices(
                [rig.sequence(model, p, 2, prompt_logprobs=2) for p in prompts[:2]]
                + [rig.sequence(model, prompts[2], 2)],
                layers,
            ),
        )
        for layers, tile_bytes in ((1000, prompt_outputs.TILE_BYTES), (1, 4 * vocab_size * 7))
        if monkeypatch.setattr(prompt_outputs, "TILE_BYTES", tile_bytes) is None
    )

    assert {place: len(entries) for place, entries in whole.items()} == {0: 69, 1: 32}
    assert max(rows_at_once) == 69  # of the first, whose tile holds all
    assert rows_at_once[-1 - 10 - 5 :][1:] == [7] * 9 + [6] + [7] * 4 + [4]
    for place, entries in whole.items():
        assert [e.token_id for e in tiled[place]] == [e.token_id for e in entries]
        assert np.allclose([e.logprob for e in tiled[place]], [e.logprob for e in entries], atol=1e-5)


def virtual(request_id: str, at_s: float, wanted: int | None) -> tuple[float, Arrival]:
    request = make_request(request_id, prompt_tokens=64, max_tokens=3)
    return at_s, Arrival(replace(request, sampling=replace(request.sampling, prompt_logprobs=wanted)))


def test_prefix__cached__is_computed_again_for_who_asks_and_used_by_all_others() -> None:
    events = [virtual("first", 0.0, None), virtual("asks", 1.0, 0), virtual("last", 2.0, None)]

    engine = VirtualEngine(events, settings=replace(PLAIN, prefix_cache=True)).run()

    cached = {
        e.request_id: e.cached_tokens for e in engine.token_events if e.tokens and not e.finish and e.cached_tokens
    }
    assert set(cached) == {"last"}
    (told,) = [e for e in engine.token_events if e.prompt_logprobs]
    assert (told.request_id, len(told.prompt_logprobs)) == ("asks", 63)


def test_event__of_who_does_not_ask__tells_nothing() -> None:
    engine = VirtualEngine([virtual("plain", 0.0, None)]).run()

    assert [e.prompt_logprobs for e in engine.token_events] == [()] * len(engine.token_events)
    assert SamplingParams(max_tokens=1).prompt_logprobs is None
