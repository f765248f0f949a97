"""Prompts on a GPU: cached prefixes and chunks through flash attention, by gathering and by pages, and the warm-up."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from cpu_rig import CpuRig, make_prompt
from gpu_rig import DEVICE, open_gpu_rig
from gpu_scenarios import furthest, top_after_prefix, top_of_chunks, top_of_prompt, write_model
from torch.nn.attention import varlen
from triton.runtime.jit import JITFunction

from pdmux_actor.executor.cuda import decode_kernels, kv_kernels, sampling_kernels
from pdmux_actor.executor.cuda.graph_key import LAYERS
from pdmux_actor.executor.cuda.prefix_pages import paged_flash, reads_pages
from pdmux_actor.models import triton_operators
from placement.launch_limits import LaunchLimits

LIMITS = LaunchLimits(batch_tokens=512, sequences=8)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("checkpoint"), 1, hidden_size=256, num_heads=8, head_dim=64)


@pytest.fixture(scope="module", params=[16 * 1024, 64 * 1024], ids=["64 tokens a block", "256 tokens a block"])
def rigs(request: pytest.FixtureRequest, checkpoint: Path) -> Iterator[Mapping[str, CpuRig]]:
    """The exact one, and those that round: some kernels take pages of 256 tokens only."""
    block_bytes = request.param
    found = {
        "exact": CpuRig(pool_mib=256, block_bytes=block_bytes),
        "cpu": CpuRig(pool_mib=128, block_bytes=block_bytes),
        "gpu": open_gpu_rig(pool_mib=128, block_bytes=block_bytes, limits=LIMITS),
    }
    for name, rig in found.items():
        rig.load("llama", checkpoint, dtype="float32" if name == "exact" else "bfloat16", max_rows=250)
    yield found
    for rig in found.values():
        rig.close()


@pytest.mark.parametrize(("length", "cached"), [(300, 256), (1100, 1024), (1100, 256)])
def test_logprobs__bf16_over_a_cached_prefix__err_about_as_much_as_on_the_cpu(
    rigs: Mapping[str, CpuRig], length: int, cached: int
) -> None:
    exact, on_cpu, on_gpu = (top_after_prefix(rigs[name], "llama", length, cached) for name in ("exact", "cpu", "gpu"))

    assert furthest(on_gpu, exact) < 3 * furthest(on_cpu, exact) + 0.02


@pytest.mark.parametrize(("length", "chunk_tokens"), [(300, 128), (1000, 300)])
def test_logprobs__bf16_in_chunks__err_about_as_much_as_on_the_cpu(
    rigs: Mapping[str, CpuRig], length: int, chunk_tokens: int
) -> None:
    exact, on_cpu, on_gpu = (top_of_chunks(rigs[n], "llama", length, chunk_tokens) for n in ("exact", "cpu", "gpu"))

    assert furthest(on_gpu, exact) < 3 * furthest(on_cpu, exact) + 0.02


@pytest.mark.parametrize("length", [2, 61, 250])
def test_logprobs__bf16_by_captured_layers__err_about_as_much_as_on_the_cpu(
    rigs: Mapping[str, CpuRig], length: int
) -> None:
    gpu = rigs["gpu"].executor
    assert any(key.part == LAYERS for key in gpu._graphs._graphs)
    assert gpu.graph_facts["prompt_graphs_that_failed"] == 0

    exact, on_cpu, on_gpu = (top_of_prompt(rigs[name], "llama", length) for name in ("exact", "cpu", "gpu"))

    assert furthest(on_gpu, exact) < 3 * furthest(on_cpu, exact) + 0.02


@pytest.mark.parametrize("block_tokens", [32, 64, 256])
def test_paged_flash__pages_of_so_many_tokens__are_read_or_refused_in_words(
    block_tokens: int, caplog: pytest.LogCaptureFixture
) -> None:
    flash = paged_flash(varlen)
    if flash is None:
        pytest.skip("this torch's flash attention takes no block table")
    caplog.set_level("INFO", logger="pdmux_actor.executor.cuda.prefix_pages")
    torch.manual_seed(0)
    pool = torch.zeros(1, 2 * 128 * block_tokens, dtype=torch.bfloat16, device=DEVICE)

    is_read = reads_pages(flash, pool, 128)
    torch.cuda.synchronize()

    assert is_read or "does not take blocks as pages" in caplog.text, "it takes them and reads other values"


def num_compiled() -> int:
    """Variants of our kernels that Triton has compiled."""
    modules = (decode_kernels, kv_kernels, sampling_kernels, triton_operators)
    kernels = [value for module in modules for value in vars(module).values() if isinstance(value, JITFunction)]
    return sum(len(caches[0]) for kernel in kernels for caches in kernel.device_caches.values())


def test_load__first_prompts_of_any_size__compile_nothing(checkpoint: Path) -> None:
    rig = open_gpu_rig(pool_mib=64, block_bytes=16 * 1024, limits=LIMITS)
    rig.load("llama", checkpoint, dtype="bfloat16", max_rows=250)
    before = num_compiled()

    for length in (LIMITS.batch_tokens, 37, 2):
        rig.prefill([rig.sequence("llama", make_prompt(length), 1)])
    top_of_chunks(rig, "llama", 100, 64)

    assert before > 0
    assert num_compiled() == before
    assert rig.executor.arena_facts["beside_arena_bytes"] == 0
    rig.close()
