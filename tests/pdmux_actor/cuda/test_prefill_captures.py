"""Layers of prompts from graphs: when, of which launches, and with the tokens of launches one by one."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton has no build for this platform")

from cpu_rig import CpuRig, make_prompt, outputs
from cuda_rig import BLOCK_BYTES, NUM_SMS, NoStream, RerunCapture, make_cuda_rig, rest
from slo_rig import LLAMA_8B

from pdmux_actor.executor.cuda.graph_key import LAYERS, GraphKey, PlannedCapture, Step
from pdmux_actor.executor.cuda.launch_buckets import EAGER_LAYER_S, host_bound_tokens
from pdmux_actor.executor.cuda.prefill_bucket import MOST_CHUNKS, STEPS_BEFORE_LAYERS, PrefillBucket
from pdmux_actor.executor.cuda.prompt_attention import packed_attention
from pdmux_actor.model_info import ModelSource
from pdmux_actor.models.attention import prompt_attention
from pdmux_actor.scheduling.launch import DropPrefill, Lane, Repartition
from placement.launch_limits import LaunchLimits
from profiler.gpus.h200 import DEVICE as H200

NEW_TOKENS = 3
Slice = tuple[int, int, int]


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[Slice]:
    """Tokens of the bucket, first and last layer of each slice that ran from graphs."""
    slices: list[Slice] = []
    run = PrefillBucket.run

    def noted(self: PrefillBucket, steps: Sequence[object], first_layer: int, last_layer: int) -> None:
        slices.append((self.size, first_layer, last_layer))
        run(self, steps, first_layer, last_layer)

    monkeypatch.setattr(PrefillBucket, "run", noted)
    return slices


def captured_rig(checkpoints: Mapping[str, Path], model: str = "llama") -> CpuRig:
    """With graphs of prompts of up to 32 tokens."""
    rig = make_cuda_rig(captures_prompts=True)
    rig.load(model, checkpoints[model])
    for length in (16, 32):
        rig.prefill([rig.sequence(model, make_prompt(length), 1)])
    rest(rig)
    return rig


def generate(rig: CpuRig, model: str, lengths: Sequence[int], layers: int = 1000, **sampling: object) -> object:
    sequences = [rig.sequence(model, make_prompt(n), NEW_TOKENS, **sampling) for n in lengths]
    rig.prefill(sequences, layers)
    rig.decode(sequences, NEW_TOKENS - 1)
    return outputs(sequences, NEW_TOKENS)


@pytest.mark.parametrize("model", ["llama", "qwen2", "qwen3"])
def test_prefill__of_captured_layers__same_tokens_as_on_the_cpu(
    tiny_checkpoints: Mapping[str, Path], model: str, replayed: list[Slice]
) -> None:
    captured, cpu = captured_rig(tiny_checkpoints, model), CpuRig(block_bytes=BLOCK_BYTES)
    cpu.load(model, tiny_checkpoints[model])
    batches = ((1,), (16,), (3, 9), (5, 6, 7, 8), (31,), (1, 30))
    expected = [generate(cpu, model, lengths) for lengths in batches]

    for layers in (1000, 1):
        replayed.clear()
        assert [generate(captured, model, lengths, layers) for lengths in batches] == expected
        num_slices = -(-captured.infos[model].spec.num_layers // layers)
        assert len(replayed) == num_slices * len(batches)
        assert {size for size, _, _ in replayed} == {16, 32}


def test_prefill__drawn_and_reported__as_launch_by_launch(tiny_checkpoints: Mapping[str, Path]) -> None:
    eager = make_cuda_rig()
    eager.load("llama", tiny_checkpoints["llama"])
    sampling = {"temperature": 0.9, "seed": 7, "logprobs": 2}

    produced = [generate(rig, "llama", (4, 7), **sampling) for rig in (captured_rig(tiny_checkpoints), eager)]

    assert produced[0] == produced[1]


def test_prefill__two_batches_between_their_slices__the_second_runs_launch_by_launch(
    tiny_checkpoints: Mapping[str, Path], replayed: list[Slice]
) -> None:
    rig = captured_rig(tiny_checkpoints)
    expected = [generate(rig, "llama", (n,)) for n in (9, 11)]
    replayed.clear()
    first, second = ([rig.sequence("llama", make_prompt(n), NEW_TOKENS)] for n in (9, 11))
    ahead, behind = (rig.prefill_slices(sequences, layers_per_slice=1) for sequences in (first, second))

    for launch in (ahead[0], *behind, *ahead[1:]):
        rig.run(launch)

    assert [size for size, _, _ in replayed] == [16] * len(ahead)
    for sequences, tokens in zip((first, second), expected, strict=True):
        rig.decode(sequences, NEW_TOKENS - 1)
        assert outputs(sequences, NEW_TOKENS) == tokens


def test_prefill__slices_on_shares_with_and_without_graphs__same_tokens(
    tiny_checkpoints: Mapping[str, Path], replayed: list[Slice]
) -> None:
    rig = captured_rig(tiny_checkpoints)
    expected = generate(rig, "llama", (9, 5))
    replayed.clear()
    sequences = [rig.sequence("llama", make_prompt(n), NEW_TOKENS) for n in (9, 5)]
    launches = rig.prefill_slices(sequences, layers_per_slice=1)

    for i, launch in enumerate(launches):
        prefill_sms = NUM_SMS if i % 2 == 0 else 2
        rig.executor.submit(Repartition(prefill_sms=prefill_sms, decode_sms=NUM_SMS - prefill_sms))
        rig.run(launch)
    rig.executor.submit(Repartition(prefill_sms=0, decode_sms=NUM_SMS))
    rig.decode(sequences, NEW_TOKENS - 1)

    assert [first for _, first, _ in replayed] == [launch.first_layer for launch in launches[::2]]
    assert outputs(sequences, NEW_TOKENS) == expected


def test_prefill__captured_between_its_slices__is_not_disturbed(tiny_checkpoints: Mapping[str, Path]) -> None:
    rig = captured_rig(tiny_checkpoints)
    expected = generate(rig, "llama", (9, 5))
    sequences = [rig.sequence("llama", make_prompt(n), NEW_TOKENS) for n in (9, 5)]
    first, *others = rig.prefill_slices(sequences, layers_per_slice=1)
    rig.run(first)
    stream = rig.executor._lanes.streams.stream(Lane.PREFILL, 2)

    key = GraphKey(model="llama", bucket=16, sms=2, part=LAYERS)
    rig.executor._graphs.plan([PlannedCapture(key, stream)])
    rest(rig)
    for launch in others:
        rig.run(launch)
    rig.decode(sequences, NEW_TOKENS - 1)

    assert key in rig.executor._graphs._graphs
    assert outputs(sequences, NEW_TOKENS) == expected


def test_prefill__captured_on_two_shares_by_turns__each_reads_its_own_rotary(
    tiny_checkpoints: Mapping[str, Path], replayed: list[Slice]
) -> None:
    rig = captured_rig(tiny_checkpoints)
    expected = generate(rig, "llama", (9, 5))
    keys = [GraphKey(model="llama", bucket=16, sms=sms, part=LAYERS) for sms in (1, 2)]
    runner, streams = rig.executor.runner(0), rig.executor._lanes.streams
    with torch.inference_mode():
        while not rig.executor._graphs._graphs.keys() >= set(keys):
            for key in keys:
                runner.capture(key, streams.stream(Lane.PREFILL, key.sms))
    replayed.clear()

    for key in keys:
        rig.executor.submit(Repartition(prefill_sms=key.sms, decode_sms=NUM_SMS - key.sms))
        assert generate(rig, "llama", (9, 5), layers=1) == expected

    num_layers = rig.infos["llama"].spec.num_layers
    assert len(replayed) == num_layers * len(keys)


def test_wait__request_comes_while_layers_are_captured__waits_for_one_of_them(
    tiny_checkpoints: Mapping[str, Path],
) -> None:
    rig = make_cuda_rig(captures_prompts=True)
    rig.load("llama", tiny_checkpoints["llama"])
    rig.prefill([rig.sequence("llama", make_prompt(9), 1)])
    executor = rig.executor

    class Interrupted(RerunCapture):
        def __call__(self, step: Step, stream: NoStream) -> tuple[Step, int]:
            executor.wake()  # as the inbox does
            return super().__call__(step, stream)

    capture = executor._graphs._capture = Interrupted(graph_bytes=1)
    num_steps = rig.infos["llama"].spec.num_layers + STEPS_BEFORE_LAYERS

    for turn in range(num_steps):
        assert executor.graph_facts["graphs"] == 0
        assert executor.wait(None) == ()
        assert capture.count == turn + 1

    assert executor.graph_facts["graphs"] == 1


def test_prefill__without_a_graph_again_and_again__each_slice_captures_a_layer_and_goes_on(
    tiny_checkpoints: Mapping[str, Path], replayed: list[Slice]
) -> None:
    """A unit that decodes all the time has no moment without launches. A batch that is between its slices is not
    disturbed.
    """
    rig = make_cuda_rig(captures_prompts=True)
    rig.load("llama", tiny_checkpoints["llama"])
    captured = rig.executor._graphs._capture
    expected, counts = generate(rig, "llama", (9,), 1), list[int]()

    while not replayed:
        before = captured.count
        assert generate(rig, "llama", (9,), 1) == expected
        counts.append(captured.count - before)
        assert len(counts) < 20

    num_layers = rig.infos["llama"].spec.num_layers
    assert counts[0] == 0
    assert max(counts) <= 2 * num_layers  # of slices; decode steps are captured as before
    assert generate(rig, "llama", (9,), 1) == expected


def test_prefill__dropped_or_failed__the_next_batch_has_the_buffers(
    tiny_checkpoints: Mapping[str, Path], replayed: list[Slice], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = captured_rig(tiny_checkpoints)
    (launch, *_) = rig.prefill_slices([rig.sequence("llama", make_prompt(9), 1)], layers_per_slice=1)
    rig.run(launch)
    rig.executor.submit(DropPrefill(batch_id=launch.batch_id))
    with monkeypatch.context() as broken:
        broken.setattr(PrefillBucket, "run", lambda *arguments: 1 / 0)
        (launch, *_) = rig.prefill_slices([rig.sequence("llama", make_prompt(9), 1)], layers_per_slice=1)
        rig.executor.submit(launch)
        assert "ZeroDivisionError" in str(rig.wait().error)
    replayed.clear()

    generate(rig, "llama", (9,))

    assert len(replayed) == 1


def test_prefill__prefix_many_chunks_or_more_tokens_than_the_host_bounds__is_not_captured(
    tiny_checkpoints: Mapping[str, Path], replayed: list[Slice]
) -> None:
    rig = captured_rig(tiny_checkpoints)
    replayed.clear()
    donor = rig.sequence("llama", make_prompt(40), 2)
    rig.prefill([donor])
    rig.over_prefix(donor, 32, 1)
    rig.prefill([rig.sequence("llama", make_prompt(1, seed), 1) for seed in range(MOST_CHUNKS + 1)])
    rest(rig)

    assert replayed == []
    assert {key.bucket for key in rig.executor._graphs._graphs if key.part == LAYERS} == {16, 32, 64}

    slow = make_cuda_rig()
    slow.load("llama", tiny_checkpoints["llama"])
    slow.prefill([slow.sequence("llama", make_prompt(9), 1)])
    assert slow.executor.graph_facts["graphs_planned"] == 0


def test_attach_model__only_one__has_its_layers_on_the_whole_device_and_beside_each_share_of_decode(
    tiny_checkpoints: Mapping[str, Path],
) -> None:
    limits = LaunchLimits(batch_tokens=64, sequences=1)
    rig = make_cuda_rig(captures_prompts=True, captures_ahead=True, launch_limits=limits)
    rig.executor.device = replace(rig.executor.device, partition_granularity_sms=2)
    info = rig.executor.load_model(ModelSource(model="llama", source=str(tiny_checkpoints["llama"])))
    rig.executor._eager_layer_s = 64 / host_bound_tokens(info.spec, rig.executor.device, 1.0)
    rig._attach(info, 400)

    def captured() -> set[tuple[int, int]]:
        return {(key.sms, key.bucket) for key in rig.executor._graphs._graphs if key.part == LAYERS}

    assert captured() == {(NUM_SMS, 16), (NUM_SMS, 32), (NUM_SMS, 64), (2, 16), (2, 32)}
    assert rig.executor._lanes.used[-1].lane is Lane.PREFILL
    assert rig.executor.graph_facts["graphs_planned"] == 0


def test_host_bound_tokens__large_layers__are_few() -> None:
    of_70b = replace(LLAMA_8B, hidden_size=8192, intermediate_size=28672, num_layers=80, num_heads=64)

    tokens_of_8b = host_bound_tokens(LLAMA_8B, H200, EAGER_LAYER_S)
    assert 700 < tokens_of_8b < 900
    assert host_bound_tokens(of_70b, H200, EAGER_LAYER_S) < 0.3 * tokens_of_8b


@pytest.mark.parametrize("lengths", [(7,), (3, 1, 5), (16,)])
def test_packed_attention__chunks_and_padding__each_sees_itself_alone(lengths: Sequence[int]) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(16, heads, 8, generator=generator) for heads in (4, 2, 2))
    ends = torch.full((len(lengths) + 3,), 16, dtype=torch.int32)
    ends[: len(lengths) + 1] = torch.tensor([0, *lengths]).cumsum(0)

    attended = packed_attention(query, key, value, ends).flatten(1)

    for first, last in zip(ends.tolist(), ends.tolist()[1:], strict=False):
        part = slice(first, last)
        expected = prompt_attention(query[part], key[part], value[part])
        torch.testing.assert_close(attended[part], expected, rtol=1e-5, atol=1e-5)
