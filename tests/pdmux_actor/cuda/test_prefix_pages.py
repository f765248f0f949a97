"""Chunks over cached prefixes by a block table, only where the kernel takes blocks: tokens are those of gathering."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton has no build for this platform")

from cpu_rig import CpuRig, make_prompt, outputs
from cuda_rig import BLOCK_BYTES, make_cuda_rig

from pdmux_actor.executor.cuda.device_batch import ChunkExtent
from pdmux_actor.executor.cuda.prefix_pages import FittingFlash, is_worth_paging, paged_flash, reads_pages
from pdmux_actor.model_info import ModelSource
from pdmux_actor.models.attention import chunk_attention


class PagedOnCpu:
    """What torch's operator computes, by its documentation: pages [pages, page size, kv heads, head_dim]."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(
        self,
        out: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seq_q: Tensor,
        cu_seq_k: Tensor | None,
        max_q: int,
        max_k: int,
        *,
        window_size: tuple[int, int],
        enable_gqa: bool,
        seqused_k: Tensor,
        block_table: Tensor,
    ) -> None:
        self.num_calls += 1
        assert (window_size, enable_gqa, cu_seq_k) == ((-1, 0), True, None)
        assert {cu_seq_q.dtype, seqused_k.dtype, block_table.dtype} == {torch.int32}
        assert key.shape[2] == 1
        assert len(block_table) == len(seqused_k) == len(cu_seq_q) - 1
        ends, used = cu_seq_q.tolist(), seqused_k.tolist()
        assert max_q == max(last - first for first, last in pairwise(ends))
        assert max_k == max(used)
        for number, (first, last) in enumerate(pairwise(ends)):
            pages = block_table[number].long()
            keys, values = (each[pages].flatten(0, 1)[: used[number]] for each in (key, value))
            key_value = torch.stack((keys, values), dim=2).transpose(0, 1)
            out[first:last] = chunk_attention(query[first:last], key_value).view_as(query[first:last])


def test_paged_flash__this_torch__has_what_is_called() -> None:
    from torch.nn.attention import varlen  # brings torch's compiler

    assert paged_flash(varlen) is varlen.varlen_attn_out
    assert paged_flash(SimpleNamespace()) is None
    assert paged_flash(SimpleNamespace(varlen_attn_out=lambda out, query: None)) is None


@pytest.mark.parametrize(("context_tokens", "is_worth"), [(500, True), (400, False)])
def test_is_worth_paging__context_of_chunks__is_more_than_the_queries_of_its_groups(
    context_tokens: int, is_worth: bool
) -> None:
    chunk = ChunkExtent(first=0, length=100, context_tokens=context_tokens)

    assert is_worth_paging([chunk], group=4) is is_worth


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
def test_prefill__over_cached_prefixes_by_pages__tokens_of_the_cpu(
    tiny_checkpoints: Mapping[str, Path], model_type: str
) -> None:
    flash, produced = PagedOnCpu(), []
    for rig in (make_cuda_rig(paged_flash=flash), CpuRig(block_bytes=BLOCK_BYTES)):
        rig.load(model_type, tiny_checkpoints[model_type], dtype="float32")
        donor = rig.sequence(model_type, make_prompt(41), 1)
        rig.prefill([donor])
        flash.num_calls = 0
        over = rig.over_prefix(donor, 36, 3)
        rig.decode([over], 2)
        chunked = [rig.sequence(model_type, make_prompt(length), 4) for length in (10, 30)]
        rig.generate_chunked(chunked, 4, chunk_tokens=4)
        produced.append((outputs([over], 3), outputs(chunked, 4)))
        if rig.executor.memory_is_host is False:
            assert flash.num_calls > 2  # each layer of the prefix's chunk, and of later chunks

    assert produced[0] == produced[1]


def refuses(*_: Any, **__: Any) -> None:
    raise RuntimeError("Paged KV cache block size must be divisible by 256")


def reads_wrong_values(out: Tensor, *_: Any, **__: Any) -> None:
    out.fill_(0.5)


@pytest.mark.parametrize(("flash", "level"), [(refuses, "INFO"), (reads_wrong_values, "WARNING")])
def test_prefill__kernel_does_not_read_blocks__gathers_with_the_same_tokens(
    tiny_checkpoints: Mapping[str, Path], flash: Any, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="pdmux_actor.executor.cuda.prefix_pages")
    produced = []
    for rig in (make_cuda_rig(paged_flash=flash), CpuRig(block_bytes=BLOCK_BYTES)):
        rig.load("llama", tiny_checkpoints["llama"], dtype="float32")
        donor = rig.sequence("llama", make_prompt(20), 1)
        rig.prefill([donor])
        produced.append(outputs([rig.over_prefix(donor, 16, 1)], 1))

    assert produced[0] == produced[1]
    assert [record.levelname for record in caplog.records if "prefixes are gathered" in record.message] == [level]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("block_bytes", "head_dim"), [(512, 16), (4096, 32), (256, 64)])
def test_reads_pages__an_operator_that_does__is_true(block_bytes: int, head_dim: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    pool = torch.zeros(2, block_bytes, dtype=torch.uint8).view(dtype)
    if pool.shape[1] < 2 * head_dim:
        pytest.skip("not one token fits")

    assert reads_pages(PagedOnCpu(), pool, head_dim)


def test_fitting_flash__models_with_the_same_blocks__is_tried_once_and_while_the_first_is_loaded(
    tiny_checkpoints: Mapping[str, Path],
) -> None:
    """To try it loads or compiles a kernel: not within a turn of the engine's loop."""
    flash = PagedOnCpu()
    rig = make_cuda_rig(paged_flash=flash)
    rig.executor.load_model(ModelSource(model="llama", source=str(tiny_checkpoints["llama"]), dtype="float32"))
    tried = flash.num_calls
    assert tried > 0

    rig.load("llama", tiny_checkpoints["llama"], "float32")
    rig.load("qwen2", tiny_checkpoints["qwen2"], "float32")

    assert flash.num_calls == tried
    assert rig.executor._attached["qwen2"].kv.flash is flash
    assert FittingFlash(None).of(rig.executor._pool, 16) is None
