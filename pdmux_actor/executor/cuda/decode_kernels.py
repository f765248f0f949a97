"""Decode attention over the head-wise block pool, split over the context (flash decoding) to fill the partition's SMs.

A program handles one sequence, one KV head and one split: the query heads of the KV head are the rows of a matrix
product (padded to 16, the least that tensor cores take), K and V are read where they lie. A second kernel joins splits.
"""

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

_LEAST_ROWS = 16
_LOG2_E = 1.4426950408889634
_MOST_SPLITS = 32
_MOST_TILE_BYTES = 64 * 1024  # sm_86, sm_89 and sm_120 have 99 KiB for a program


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeTiling:
    """Says how a program goes through its context. The defaults have not been tuned on a GPU:
    benchmarks/gpu/kernels.py.
    """

    tile_tokens: int = 64
    num_warps: int = 4
    num_stages: int = 2

    def fitted(self, head_bytes: int) -> "DecodeTiling":
        """Returns a tiling whose tiles of K and V fit the shared memory of any GPU since sm_80. `head_bytes`: of one
        token's K.
        """
        most = _MOST_TILE_BYTES // (2 * head_bytes * self.num_stages)
        if most >= self.tile_tokens:
            return self
        # Twice the warps hold the wider rows of queries and values in registers.
        return replace(self, tile_tokens=max(_LEAST_ROWS, most), num_warps=2 * self.num_warps)


DEFAULT_TILING = DecodeTiling()


@triton.jit
def _blocks_of(tokens, last, first_row_ptr, column_ptr, TOKENS_PER_ROW: tl.constexpr, BLOCKS_PER_ROW: tl.constexpr):
    """The physical block of each token before `last`. It is asked for a tile ahead, while the tile before is read."""
    valid = tokens < last
    row = tl.load(first_row_ptr + tokens // TOKENS_PER_ROW, mask=valid, other=0).to(tl.int64)
    return tl.load(column_ptr + row * BLOCKS_PER_ROW, mask=valid, other=0)


@triton.jit
def _keep_split(partial_ptr, lse_ptr, slot, slot_mask, lanes, highest, total, weighted, HEAD_DIM: tl.constexpr):
    """Of each slot, the attended values and the logarithm of their weights' sum."""
    has_tokens = total > 0.0
    share = tl.where(has_tokens, total, 1.0)
    tl.store(lse_ptr + slot, tl.where(has_tokens, highest + tl.log2(share), float("-inf")), mask=slot_mask)
    tl.store(
        partial_ptr + slot[:, None] * HEAD_DIM + lanes[None, :],
        weighted / share[:, None],
        mask=slot_mask[:, None] & (lanes < HEAD_DIM)[None, :],
    )


@triton.jit(do_not_specialize=["first_column"])
def _split_kernel(
    query_ptr,
    query_token_stride,
    query_head_stride,
    pool_ptr,
    table_ptr,
    rows_ptr,
    row_stride_ptr,
    context_tokens_ptr,
    partial_ptr,
    lse_ptr,
    first_column,
    block_elements,
    scale_log2,
    GROUP: tl.constexpr,
    GROUP_PADDED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
    TOKENS_PER_ROW: tl.constexpr,
    BLOCKS_PER_ROW: tl.constexpr,
    TILE: tl.constexpr,
):
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    split = tl.program_id(2)
    context_tokens = tl.load(context_tokens_ptr + sequence)
    first_row_ptr = rows_ptr + sequence * tl.load(row_stride_ptr)
    split_tokens = tl.cdiv(tl.cdiv(context_tokens, TILE), tl.num_programs(2)) * TILE
    first = split * split_tokens
    last = tl.minimum(first + split_tokens, context_tokens)

    group, lanes, in_tile = tl.arange(0, GROUP_PADDED), tl.arange(0, HEAD_DIM_PADDED), tl.arange(0, TILE)
    query_heads = head * GROUP + group
    query_offsets = sequence * query_token_stride + query_heads[:, None] * query_head_stride + lanes[None, :]
    query = tl.load(query_ptr + query_offsets, mask=(group < GROUP)[:, None] & (lanes < HEAD_DIM)[None, :], other=0.0)
    highest = tl.full([GROUP_PADDED], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_PADDED], tl.float32)
    weighted = tl.zeros([GROUP_PADDED, HEAD_DIM_PADDED], tl.float32)
    column_ptr = table_ptr + first_column + head
    block = _blocks_of(first + in_tile, last, first_row_ptr, column_ptr, TOKENS_PER_ROW, BLOCKS_PER_ROW)
    for start in range(first, last, TILE):
        tokens = start + in_tile
        valid = tokens < last
        offsets = block.to(tl.int64) * block_elements + (tokens % TOKENS_PER_ROW) * 2 * HEAD_DIM
        # What is masked is not read: other models' bytes, NaN patterns as likely as not, lie beside it.
        read_mask = valid[:, None] & (lanes < HEAD_DIM)[None, :]
        key = tl.load(pool_ptr + offsets[:, None] + lanes[None, :], mask=read_mask, other=0.0)
        value = tl.load(pool_ptr + offsets[:, None] + HEAD_DIM + lanes[None, :], mask=read_mask, other=0.0)
        block = _blocks_of(tokens + TILE, last, first_row_ptr, column_ptr, TOKENS_PER_ROW, BLOCKS_PER_ROW)
        products = tl.dot(query, tl.trans(key), input_precision="ieee")
        scores = tl.where(valid[None, :], products * scale_log2, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(scores, axis=1))
        rescale = tl.exp2(highest - new_highest)
        weights = tl.exp2(scores - new_highest[:, None])
        weighted = weighted * rescale[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        total = total * rescale + tl.sum(weights, axis=1)
        highest = new_highest

    slot = (sequence * tl.num_programs(1) * GROUP + query_heads) * tl.num_programs(2) + split
    _keep_split(partial_ptr, lse_ptr, slot, group < GROUP, lanes, highest, total, weighted, HEAD_DIM)


@triton.jit(do_not_specialize=["num_splits"])
def _join_kernel(
    partial_ptr,
    lse_ptr,
    out_ptr,
    num_splits,
    SPLITS_PADDED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
):
    slot = tl.program_id(0).to(tl.int64)
    splits = tl.arange(0, SPLITS_PADDED)
    lanes = tl.arange(0, HEAD_DIM_PADDED)
    lse = tl.load(lse_ptr + slot * num_splits + splits, mask=splits < num_splits, other=float("-inf"))
    highest = tl.max(lse, axis=0)
    highest = tl.where(highest == float("-inf"), 0.0, highest)  # padding of a captured batch: no tokens at all
    weights = tl.exp2(lse - highest)
    partial = tl.load(
        partial_ptr + (slot * num_splits + splits)[:, None] * HEAD_DIM + lanes[None, :],
        mask=(splits < num_splits)[:, None] & (lanes < HEAD_DIM)[None, :],
        other=0.0,
    )
    total = tl.sum(weights, axis=0)
    joined = tl.sum(partial * weights[:, None], axis=0) / tl.where(total > 0.0, total, 1.0)
    tl.store(out_ptr + slot * HEAD_DIM + lanes, joined.to(out_ptr.dtype.element_ty), mask=lanes < HEAD_DIM)


def decode_splits(num_sequences: int, kv_heads: int, sms: int) -> int:
    """Splits of each context, so that the programs come to two for every SM of the partition, where there are fewer."""
    return max(1, min(_MOST_SPLITS, -(-2 * sms // (num_sequences * kv_heads))))


def decode_attention(
    query: Tensor,
    pool: Tensor,
    table: Tensor,
    rows: Tensor,
    row_stride: Tensor,
    context_tokens: Tensor,
    *,
    layer: int,
    kv_heads: int,
    tokens_per_row: int,
    num_splits: int,
    tiling: DecodeTiling | None = None,
) -> Tensor:
    """One query token per sequence, over `context_tokens` (int32 [sequences], the new token included, 0: padding).

    query: [sequences, heads, head_dim]; pool: [blocks, elements]; table: int32 [max_rows, blocks_per_row]; rows: int32,
    row i of sequence s at `rows[s * row_stride + i]`; row_stride: int32 [1], on the device since a captured graph must
    not hold it. Returns [sequences, heads * head_dim].
    """
    num_sequences, num_heads, head_dim = query.shape
    padded_dim = triton.next_power_of_2(head_dim)
    tiling = tiling or DEFAULT_TILING.fitted(padded_dim * pool.itemsize)
    partial = torch.empty(num_sequences, num_heads, num_splits, head_dim, dtype=torch.float32, device=query.device)
    lse = torch.empty(num_sequences, num_heads, num_splits, dtype=torch.float32, device=query.device)
    out = torch.empty(num_sequences, num_heads * head_dim, dtype=query.dtype, device=query.device)
    _split_kernel[(num_sequences, kv_heads, num_splits)](
        query,
        query.stride(0),
        query.stride(1),
        pool,
        table,
        rows,
        row_stride,
        context_tokens,
        partial,
        lse,
        layer * kv_heads,
        pool.stride(0),
        head_dim**-0.5 * _LOG2_E,
        GROUP=num_heads // kv_heads,
        GROUP_PADDED=max(_LEAST_ROWS, triton.next_power_of_2(num_heads // kv_heads)),
        HEAD_DIM=head_dim,
        HEAD_DIM_PADDED=padded_dim,
        TOKENS_PER_ROW=tokens_per_row,
        BLOCKS_PER_ROW=table.shape[1],
        TILE=tiling.tile_tokens,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )
    _join_kernel[(num_sequences * num_heads,)](
        partial,
        lse,
        out,
        num_splits,
        SPLITS_PADDED=_MOST_SPLITS,  # for any number of splits: one variant, and what is masked is not read
        HEAD_DIM=head_dim,
        HEAD_DIM_PADDED=padded_dim,
    )
    return out
