"""Captured decode on a GPU: a large vocabulary, launches queued beside a graph, and FlashInfer's answers."""

from pathlib import Path

import pytest
import torch
from cpu_rig import CpuRig, make_prompt, outputs
from gpu_rig import DEVICE, open_gpu_rig
from gpu_scenarios import drawn_and_greedy, write_large_vocabulary

from pdmux_actor.executor.cuda.decode_kernels import decode_attention
from pdmux_actor.executor.cuda.kv_kernels import store_kv
from pdmux_actor.executor.cuda.split_kernels import split_list
from pdmux_actor.scheduling.launch import Lane, Repartition
from placement.launch_limits import LaunchLimits

BLOCK_BYTES = 4096
LIMITS = LaunchLimits(batch_tokens=256, sequences=4)
QUEUED = 400


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_large_vocabulary(tmp_path_factory.mktemp("large-vocabulary"))


def open_rig(checkpoint: Path, *, captures: bool = True) -> CpuRig:
    rig = open_gpu_rig(pool_mib=32, block_bytes=BLOCK_BYTES, limits=LIMITS, captures=captures)
    rig.load("llama", checkpoint, dtype="float32", max_rows=100)
    return rig


@pytest.mark.parametrize("steps", [1, 4])
def test_tokens__vocabulary_of_128k_under_capture__are_those_of_eager_steps_and_of_the_cpu(
    checkpoint: Path, steps: int
) -> None:
    captured, eager, cpu = open_rig(checkpoint), open_rig(checkpoint, captures=False), CpuRig(block_bytes=BLOCK_BYTES)
    cpu.load("llama", checkpoint, dtype="float32", max_rows=100)
    first = drawn_and_greedy(captured, "llama", 9, steps)
    while captured.executor._capture_planned():
        pass

    assert drawn_and_greedy(captured, "llama", 9, steps) == first
    assert captured.executor.graph_facts["graphs_that_failed"] == 0
    assert captured.executor.graph_facts["graphs"] > 0
    assert first == drawn_and_greedy(eager, "llama", 9, steps)
    assert first[0] == drawn_and_greedy(cpu, "llama", 9, steps)[0]  # what is drawn may fall otherwise at 1e-7
    for rig in (captured, eager, cpu):
        rig.close()


def test_graph__hundreds_of_launches_queued_on_the_other_lane__gives_its_tokens(checkpoint: Path) -> None:
    rig = open_rig(checkpoint)
    device = rig.executor.device
    decode_sms = device.partition_granularity_sms
    rig.executor.submit(Repartition(prefill_sms=device.num_sms - decode_sms, decode_sms=decode_sms))
    expected, produced = [], []
    stream = rig.executor._lanes.streams.stream(Lane.PREFILL, device.num_sms - decode_sms)
    counter = torch.zeros(1 << 20, device=DEVICE)
    torch.cuda.synchronize()
    for queued, into in ((0, expected), (QUEUED, produced)):
        sequences = [rig.sequence("llama", make_prompt(n), 12) for n in (5, 9, 14)]
        rig.prefill(sequences)
        for _ in range(10):
            with torch.cuda.stream(stream):
                for _ in range(queued):
                    counter.add_(1)
            rig.decode(sequences, 1)
        into += outputs(sequences, 11)
    torch.cuda.synchronize()

    assert produced == expected
    assert bool((counter == 10 * QUEUED).all())
    assert rig.executor.graph_facts["graphs"] > 0
    rig.close()


@pytest.mark.parametrize("context", [1, 63, 700, 5000])
def test_decode_attention__bf16__within_its_rounding_of_flashinfer(context: int) -> None:
    flashinfer = pytest.importorskip("flashinfer", reason="FlashInfer is not installed here")
    torch.manual_seed(context)
    heads, kv_heads, dim, block_tokens = 32, 8, 128, 32
    num_rows = -(-context // block_tokens)
    pool = torch.zeros(num_rows * kv_heads, block_tokens * 2 * dim, device=DEVICE, dtype=torch.bfloat16)
    table = torch.randperm(num_rows * kv_heads, device=DEVICE).view(num_rows, kv_heads).to(torch.int32)
    positions = torch.arange(context, dtype=torch.int32, device=DEVICE)
    key, value = (torch.randn(context, kv_heads, dim, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    query = torch.randn(1, heads, dim, device=DEVICE, dtype=torch.bfloat16)
    store_kv(pool, table, positions // block_tokens, positions, key, value, layer=0, tokens_per_row=block_tokens)
    contexts = torch.tensor([context], dtype=torch.int32, device=DEVICE)

    ours = decode_attention(
        query,
        pool,
        table,
        torch.arange(num_rows, dtype=torch.int32, device=DEVICE),
        torch.tensor([num_rows], dtype=torch.int32, device=DEVICE),
        contexts,
        layer=0,
        kv_heads=kv_heads,
        tokens_per_row=block_tokens,
        splits=split_list(contexts, 32),
    )[0].double()
    theirs = flashinfer.single_decode_with_kv_cache(query[0], key, value).flatten().double()

    assert (ours - theirs).norm() / theirs.norm() < 1e-2
