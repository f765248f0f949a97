"""Fused steps on a GPU: in captured pieces, and while their pieces are captured beside launches in flight."""

from pathlib import Path

import pytest
import torch
from cpu_rig import CpuRig, make_prompt, outputs
from gpu_rig import DEVICE, open_gpu_rig
from gpu_scenarios import furthest, top_of_chunks, write_model

from pdmux_actor.executor.cuda.graph_key import PIECES
from pdmux_actor.scheduling.launch import Lane
from placement.launch_limits import LaunchLimits

BLOCK_BYTES = 16 * 1024
LIMITS = LaunchLimits(batch_tokens=512, sequences=4)
NEW_TOKENS = 6
MOST_ROUNDS, QUEUED = 60, 400


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("checkpoint"), 1, hidden_size=256, num_heads=8, head_dim=64)


def open_rig(checkpoint: Path, dtype: str, *, fuses: bool) -> CpuRig:
    rig = open_gpu_rig(pool_mib=128, block_bytes=BLOCK_BYTES, limits=LIMITS, fuses=fuses)
    rig.load("llama", checkpoint, dtype=dtype, max_rows=250)
    return rig


def on_cpu(checkpoint: Path, dtype: str) -> CpuRig:
    rig = CpuRig(pool_mib=128, block_bytes=BLOCK_BYTES)
    rig.load("llama", checkpoint, dtype=dtype, max_rows=250)
    return rig


def chunked(rig: CpuRig) -> list[object]:
    sequences = [rig.sequence("llama", make_prompt(length), NEW_TOKENS) for length in (10, 61, 25)]
    rig.generate_chunked(sequences, NEW_TOKENS, chunk_tokens=24)
    return outputs(sequences, NEW_TOKENS)


def test_tokens__fp32_from_captured_pieces__are_those_of_the_cpu(checkpoint: Path) -> None:
    gpu, cpu = open_rig(checkpoint, "float32", fuses=True), on_cpu(checkpoint, "float32")
    captured = {key.bucket for key in gpu.executor._graphs._graphs if key.part == PIECES}

    assert {16, 32, 64} <= captured
    assert chunked(gpu) == chunked(gpu) == chunked(cpu)
    assert gpu.executor.graph_facts["prompt_graphs_that_failed"] == 0
    gpu.close()


@pytest.mark.parametrize(("length", "chunk_tokens"), [(300, 128), (500, 300)])
def test_logprobs__bf16_from_captured_pieces__err_about_as_much_as_on_the_cpu(
    checkpoint: Path, length: int, chunk_tokens: int
) -> None:
    exact, cpu = on_cpu(checkpoint, "float32"), on_cpu(checkpoint, "bfloat16")
    gpu = open_rig(checkpoint, "bfloat16", fuses=True)

    expected, on_a_cpu, on_a_gpu = (top_of_chunks(rig, "llama", length, chunk_tokens) for rig in (exact, cpu, gpu))

    assert furthest(on_a_gpu, expected) < 3 * furthest(on_a_cpu, expected) + 0.02
    gpu.close()


def test_tokens__pieces_captured_by_steps_beside_what_the_other_lane_does__are_those_of_before(
    checkpoint: Path,
) -> None:
    rig = open_rig(checkpoint, "float32", fuses=False)
    sms, granularity = rig.executor.device.num_sms, rig.executor.device.partition_granularity_sms
    stream = rig.executor._lanes.streams.stream(Lane.PREFILL, sms - granularity)
    counter = torch.zeros(1 << 20, device=DEVICE)
    torch.cuda.synchronize()
    first = chunked(rig)
    assert not any(key.part == PIECES for key in rig.executor._graphs._graphs)

    rounds = 0
    while rig.executor.graph_facts["graphs_planned"] or not rounds:
        rounds += 1
        assert rounds < MOST_ROUNDS
        with torch.cuda.stream(stream):
            for _ in range(QUEUED):
                counter.add_(1)
        assert chunked(rig) == first

    torch.cuda.synchronize()
    assert {key.bucket for key in rig.executor._graphs._graphs if key.part == PIECES} >= {16, 32}
    assert rig.executor.graph_facts["graphs_in_traffic"] > 0
    assert rig.executor.graph_facts["prompt_graphs_that_failed"] == 0
    assert bool((counter == rounds * QUEUED).all())
    assert chunked(rig) == first
    rig.close()
