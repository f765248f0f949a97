"""What a prompt means: transformers' last hidden state, whatever policy, chunks, slices, caches and types do."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cpu_rig import CpuRig, make_prompt
from engine_rig import PLAIN, VirtualEngine, make_request
from test_token_identity import make_requests, run_engine
from transformers import AutoModel, AutoModelForCausalLM

from pdmux_actor.messages import GenerateRequest
from pdmux_actor.models.random_checkpoint import CheckpointShape, write_random_checkpoint
from pdmux_actor.scheduling.events import Arrival, SetPolicy
from pdmux_actor.scheduling.launch import Chunk, MixedStep
from pdmux_actor.scheduling.policies.registry import POLICIES
from pdmux_actor.scheduling.settings import SchedulerSettings

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")
TINY = {"num_layers": 3, "hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16}
Told = dict[str, bytes]


def last_states(path, prompts, dtype=torch.float32) -> list[np.ndarray]:
    network = AutoModel.from_pretrained(path, dtype=dtype).eval()
    with torch.inference_mode():
        return [network(torch.tensor([p])).last_hidden_state[0, -1].float().numpy() for p in prompts]


@pytest.fixture(scope="module")
def reference(demo_checkpoints) -> dict[tuple[str, tuple[int, ...]], np.ndarray]:
    known = {}
    for model, path in demo_checkpoints.items():
        prompts = [r.prompt_token_ids for r in make_requests(demo_checkpoints, tbt_s=1.0) if r.model == model]
        known |= {(model, prompt): state for prompt, state in zip(prompts, last_states(path, prompts), strict=True)}
    return known


def cosine(told: bytes, wanted: np.ndarray) -> float:
    vector = np.frombuffer(told, dtype="<f4").astype(np.float64)
    return float(vector @ wanted / np.linalg.norm(vector) / np.linalg.norm(wanted))


def embedding(request: GenerateRequest) -> GenerateRequest:
    return replace(request, sampling=replace(request.sampling, max_tokens=1, processing=None), embeds=True)


def told_once(events) -> Told:
    told: Told = {}
    for event in events:
        if event.embedding:
            assert event.request_id not in told, "told twice"
            told[event.request_id] = event.embedding
    return told


def check(told: Told, requests, reference) -> None:
    assert set(told) == {r.request_id for r in requests if r.embeds}
    for request in requests:
        if request.embeds:
            assert cosine(told[request.request_id], reference[request.model, request.prompt_token_ids]) > 0.9999


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_engine__any_policy__embeddings_are_transformers(demo_checkpoints, reference, policy) -> None:
    requests = [embedding(r) if i % 3 else r for i, r in enumerate(make_requests(demo_checkpoints, tbt_s=0.001))]
    events = []

    tokens, _ = run_engine(demo_checkpoints, requests, policy=policy, told=events)

    check(told_once(events), requests, reference)
    assert {len(tokens[r.request_id]) for r in requests if r.embeds} == {1}


def test_engine__little_memory_changing_policies_and_cached_prompts__embeddings_are_transformers(
    demo_checkpoints, reference
) -> None:
    short = [r for r in make_requests(demo_checkpoints, tbt_s=0.002) if len(r.prompt_token_ids) < 140]
    before = [replace(r, request_id=f"{r.request_id}/before") for r in short]
    requests = [*before, *(embedding(r) for r in reversed(short))]
    names = sorted(POLICIES)
    settings = SchedulerSettings(
        max_batch_tokens=1024, chunk_budget_tokens=50, kv_watermark=0.0, kv_lendable_share=0.0, decode_lanes=3
    )
    events = []

    _, report = run_engine(
        demo_checkpoints,
        requests,
        policy="mux",
        changes=[SetPolicy(names[i % len(names)]) for i in range(len(requests))],
        quota_tokens=320,
        settings=settings,
        told=events,
    )

    check(told_once(events), requests, reference)
    assert sum(m.preemptions_total for m in report.models) > 0


@pytest.fixture
def rig() -> Iterator[CpuRig]:
    rig = CpuRig()
    yield rig
    rig.close()


def asking(rig: CpuRig, model: str, *lengths: int):
    """Sequences of which each asks."""
    sequences = [rig.sequence(model, make_prompt(n), 1) for n in lengths]
    for sequence in sequences:
        sequence.request = replace(sequence.request, embeds=True)
    return sequences


@pytest.fixture(scope="module")
def tiny_checkpoints(tmp_path_factory) -> dict[str, Path]:
    """One of each architecture that the engine computes."""
    root = tmp_path_factory.mktemp("tiny")
    for model_type in ARCHITECTURES:
        write_random_checkpoint(root / model_type, CheckpointShape(model_type=model_type, **TINY), seed=5)
    return {model_type: root / model_type for model_type in ARCHITECTURES}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("dtype", "least"), [("float32", 0.99999), ("bfloat16", 0.995)])
def test_architectures__sliced_by_layers__embeddings_are_transformers(
    rig, tiny_checkpoints, architecture, dtype, least
) -> None:
    rig.load(architecture, tiny_checkpoints[architecture], dtype=dtype)
    sequences = asking(rig, architecture, 1, 9, 40)

    for launch in rig.prefill_slices(sequences, layers_per_slice=1):
        rig.executor.submit(launch)
        done = rig.wait()
        rig.apply(done)

    wanted = last_states(tiny_checkpoints[architecture], [make_prompt(n) for n in (1, 9, 40)])
    assert [cosine(done.embeddings[i], wanted[i]) > least for i in range(3)] == [True] * 3


def test_chunks__of_one_prompt__only_the_last_has_an_embedding(rig, tiny_checkpoints) -> None:
    rig.load("llama", tiny_checkpoints["llama"], dtype="float32")
    (sequence,) = asking(rig, "llama", 20)
    told = []

    for start, length in ((0, 9), (9, 10), (19, 1)):  # the last as after a prompt whose cached rows are all but it
        rig.executor.submit(MixedStep(model="llama", chunks=(Chunk(sequence, start, length),), sequences=()))
        told.append(dict(rig.wait().embeddings))

    assert [list(of_launch) for of_launch in told] == [[], [], [0]]
    (wanted,) = last_states(tiny_checkpoints["llama"], [make_prompt(20)])
    assert cosine(told[2][0], wanted) > 0.99999


def last_logits(path, prompts, token_ids) -> list[np.ndarray]:
    network = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with torch.inference_mode():
        return [network(torch.tensor([p])).logits[0, -1, list(token_ids)].numpy() for p in prompts]


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_scores__beside_embeddings_and_other_scores__are_transformers_logits(
    rig, tiny_checkpoints, architecture
) -> None:
    folder = tiny_checkpoints[architecture]
    rig.load(architecture, folder, dtype="float32")
    lengths, scored = (1, 9, 40, 17), ((7, 3), (), (7, 3), (250,))
    sequences = asking(rig, architecture, *lengths)
    for sequence, tokens in zip(sequences, scored, strict=True):
        sequence.request = replace(sequence.request, scored_tokens=tokens)

    for launch in rig.prefill_slices(sequences, layers_per_slice=2):
        rig.executor.submit(launch)
        done = rig.wait()
        rig.apply(done)

    assert sorted(done.embeddings) == [0, 1, 2, 3]
    for place in (0, 2, 3):
        told = np.frombuffer(done.embeddings[place], dtype="<f4")
        (wanted,) = last_logits(folder, [make_prompt(lengths[place])], scored[place])
        assert told.shape == wanted.shape
        assert np.allclose(told, wanted, atol=1e-4)
    (wanted,) = last_states(folder, [make_prompt(9)])
    assert cosine(done.embeddings[1], wanted) > 0.99999


def virtual(request_id: str, at_s: float, *, embeds: bool) -> tuple[float, Arrival]:
    return at_s, Arrival(replace(make_request(request_id, prompt_tokens=64, max_tokens=1), embeds=embeds))


def test_prompt__wholly_cached__still_has_an_embedding_which_nobody_else_is_told() -> None:
    events = [virtual(name, at_s, embeds=name != "plain") for at_s, name in enumerate(("plain", "one", "two"))]

    engine = VirtualEngine(events, settings=replace(PLAIN, prefix_cache=True)).run()

    told = told_once(engine.token_events)
    assert set(told) == {"one", "two"}
    assert told["one"] == told["two"]
    assert len(told["one"]) == 4 * 64  # the model's hidden size
    assert {e.request_id for e in engine.token_events if e.cached_tokens} == {"one", "two"}
