"""What tests on a GPU ask of a rig, on the CPU rig: that they ask it rightly, and get the CPU executor's answers."""

from collections.abc import Mapping
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton has no build for this platform")

from cpu_rig import CpuRig
from cuda_rig import BLOCK_BYTES, make_cuda_rig
from gpu_scenarios import (
    drawn_and_greedy,
    furthest,
    top_after_prefix,
    top_of_chunks,
    top_of_prompt,
    write_large_vocabulary,
)


def test_scenarios__on_the_cpu_rig__give_what_the_cpu_executor_gives(tiny_checkpoints: Mapping[str, Path]) -> None:
    ours, cpu = make_cuda_rig(), CpuRig(block_bytes=BLOCK_BYTES)
    for rig in (ours, cpu):
        rig.load("llama", tiny_checkpoints["llama"], dtype="float32")

    prefixes = [top_after_prefix(rig, "llama", 20, 16) for rig in (ours, cpu)]
    chunks = [top_of_chunks(rig, "llama", 20, 8) for rig in (ours, cpu)]
    layers = [top_of_prompt(rig, "llama", 20) for rig in (ours, cpu)]

    assert furthest(*prefixes) < 1e-4
    assert furthest(*chunks) < 1e-4
    assert furthest(*layers) < 1e-4
    assert furthest(prefixes[0], chunks[0]) < 1e-4
    assert furthest(prefixes[0], layers[0]) < 1e-4
    assert drawn_and_greedy(ours, "llama", 4, 2) == drawn_and_greedy(cpu, "llama", 4, 2)


def test_large_vocabulary__on_the_cpu_rig__gives_what_the_cpu_executor_gives(tmp_path: Path) -> None:
    folder = write_large_vocabulary(tmp_path)
    ours, cpu = make_cuda_rig(), CpuRig(block_bytes=BLOCK_BYTES)
    for rig in (ours, cpu):
        rig.load("llama", folder, dtype="float32")

    assert drawn_and_greedy(ours, "llama", 2, 1)[0] == drawn_and_greedy(cpu, "llama", 2, 1)[0]
