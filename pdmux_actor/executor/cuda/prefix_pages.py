"""Attention of chunks whose prefix is cached, over the pool itself: torch's flash kernel reads pages by a block table.

A page is a block: one KV head of one layer. KV heads are sequences of their own to the kernel, each with the queries of
its group, so that queries and answers are laid anew, and not the context.
"""

import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pdmux_actor.executor.cuda.device_batch import ChunkExtent
from pdmux_actor.models.attention import chunk_attention
from pdmux_actor.models.memory_shortage import lacked_memory
from pdmux_actor.models.workspace import Workspace

_LOG = logging.getLogger(__name__)
_CAUSAL = (-1, 0)
_TOLERANCE = 2e-2  # of bfloat16, relative to the largest value


PagedFlash = Callable[..., Any]
"""torch.nn.attention.varlen.varlen_attn_out, with a block table."""


def paged_flash(varlen: Any) -> PagedFlash | None:
    """`varlen` is torch.nn.attention.varlen, or whatever answers like it. None: this torch's takes no block table."""
    attend: PagedFlash | None = getattr(varlen, "varlen_attn_out", None)
    if attend is None or "block_table" not in inspect.signature(attend).parameters:
        return None
    return attend


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedContexts:
    """Contexts of a launch's chunks. chunk_rows: int32 [chunks * most rows], each chunk's rows; context_tokens: int32
    [chunks]; query_ends: int32 [chunks + 1], cumulative.
    """

    chunk_rows: Tensor
    context_tokens: Tensor
    query_ends: Tensor


def is_worth_paging(chunks: Sequence[ChunkExtent], group: int) -> bool:
    """Returns whether contexts are more to move than queries and answers of a group's heads."""
    return sum(chunk.context_tokens for chunk in chunks) > group * sum(chunk.length for chunk in chunks)


def attend_pages(
    flash: PagedFlash,
    query: Tensor,
    pool: Tensor,
    table: Tensor,
    contexts: PagedContexts,
    chunks: Sequence[ChunkExtent],
    attended: Tensor,
    *,
    layer: int,
    kv_heads: int,
    workspace: Workspace,
) -> None:
    """query: [tokens, heads, head_dim]; pool: [blocks, elements]; table: int32 [rows, blocks of a row], where the new
    tokens' keys and values are already. Fills `attended`, of the shape of `query`.
    """
    num_tokens, num_heads, head_dim = query.shape
    group = num_heads // kv_heads
    folded, answers = (
        workspace.empty((kv_heads, num_tokens, group, head_dim), query.dtype, query.device) for _ in range(2)
    )
    folded.copy_(query.view(num_tokens, kv_heads, group, head_dim).transpose(0, 1))
    pages = pool.view(len(pool), -1, 1, 2 * head_dim)
    of_layer = table[:, layer * kv_heads : (layer + 1) * kv_heads].index_select(0, contexts.chunk_rows)
    num_chunks = len(chunks)
    block_table = of_layer.view(num_chunks, -1, kv_heads).permute(2, 0, 1).reshape(kv_heads * num_chunks, -1)
    flash(
        answers.view(-1, group, head_dim),
        folded.view(-1, group, head_dim),
        pages[..., :head_dim],
        pages[..., head_dim:],
        _ends_of_heads(contexts.query_ends, num_tokens, kv_heads),
        None,
        max(chunk.length for chunk in chunks),
        max(chunk.context_tokens for chunk in chunks),
        window_size=_CAUSAL,
        enable_gqa=True,
        seqused_k=contexts.context_tokens.repeat(kv_heads),
        block_table=block_table,
    )
    attended.view(num_tokens, kv_heads, group, head_dim).copy_(answers.transpose(0, 1))


def _ends_of_heads(query_ends: Tensor, num_tokens: int, kv_heads: int) -> Tensor:
    """Of one head's chunks -> of all heads', one head after the other."""
    firsts = torch.arange(0, kv_heads * num_tokens, num_tokens, dtype=torch.int32, device=query_ends.device)
    return torch.cat((query_ends[:1], (firsts[:, None] + query_ends[1:]).flatten()))


class FittingFlash:
    """Remembers of which models' blocks `flash` reads: kernels differ in the sizes of pages that they take, so it is
    tried. That loads, or even compiles, the kernel, for which a launch would wait.
    """

    def __init__(self, flash: PagedFlash | None) -> None:
        self._flash = flash
        self._found: dict[tuple[int, torch.dtype, int], bool] = {}

    def of(self, pool: Tensor, head_dim: int) -> PagedFlash | None:
        """None: for blocks like those of `pool`, of a model's dtype, there is none."""
        if self._flash is None:
            return None
        key = pool.shape[1], pool.dtype, head_dim
        if key not in self._found:
            self._found[key] = reads_pages(self._flash, pool, head_dim)
        return self._flash if self._found[key] else None


def reads_pages(flash: PagedFlash, pool: Tensor, head_dim: int) -> bool:
    """Returns whether it computes over blocks like those of `pool` what attention is. Raises what it raises for want of
    memory.
    """
    kv_heads, group, block_tokens = 2, 2, pool.shape[1] // (2 * head_dim)
    context, new = block_tokens + max(1, block_tokens // 2), max(1, block_tokens // 2)
    device = pool.device
    blocks = torch.randn(2 * kv_heads, pool.shape[1], device=device).to(pool.dtype)
    table = torch.arange(2 * kv_heads, dtype=torch.int32, device=device).flip(0).view(2, kv_heads)
    query = torch.randn(new, group * kv_heads, head_dim, device=device).to(pool.dtype)
    contexts = PagedContexts(
        chunk_rows=torch.arange(2, dtype=torch.int32, device=device),
        context_tokens=torch.full((1,), context, dtype=torch.int32, device=device),
        query_ends=torch.arange(0, 2 * new, new, dtype=torch.int32, device=device),
    )
    chunks, attended = [ChunkExtent(first=0, length=new, context_tokens=context)], torch.zeros_like(query)
    key_value = blocks.view(-1, block_tokens, 2, head_dim)[table.t().long()].flatten(1, 2)[:, :context]
    expected = chunk_attention(query.float(), key_value.float()).view_as(query)
    try:
        attend_pages(
            flash, query, blocks, table, contexts, chunks, attended, layer=0, kv_heads=kv_heads, workspace=Workspace()
        )
        is_same = bool((attended.float() - expected).abs().max() < _TOLERANCE * expected.abs().max())
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as refusal:
        if lacked_memory(refusal):
            raise
        _LOG.info("cached prefixes are gathered: torch's flash kernel does not take blocks as pages: %s", refusal)
        return False
    if not is_same:
        _LOG.warning("cached prefixes are gathered: torch's flash kernel reads other values from blocks as pages")
    return is_same
