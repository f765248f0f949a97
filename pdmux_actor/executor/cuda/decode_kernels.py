"""Decode attention over the head-wise block pool, split over the context (flash decoding) to fill the partition's SMs.

A program handles one KV head and one split of a sequence: the query heads of the KV head are the rows of a matrix
product (padded to 16, the least that tensor cores take), K and V are read where they lie. Which splits there are is
decided on the device once per step, by the tokens that each sequence has (split_kernels.py), so that one long sequence
beside short ones is not left to a single program. A sequence of one split is done with it; a second kernel joins those
of several.
"""

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from pdmux_actor.executor.cuda.split_kernels import SplitList

_LEAST_ROWS = 16
_LOG2_E = 1.4426950408889634
_SPLITS_AT_ONCE = 32
_MOST_TILE_BYTES = 64 * 1024  # sm_86, sm_89 and sm_120 have 99 KiB for a program


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeTiling:
    """Says how a program goes through its context. The defaults were the fastest on an H200, by
    benchmarks/gpu/kernels.py: three programs on an SM hide each other's waiting better than two do that have tiles on
    their way.
    """

    tile_tokens: int = 128
    num_warps: int = 4
    num_stages: int = 2  # tiles of which one is computed and the others are on their way

    def fitted(self, head_bytes: int) -> "DecodeTiling":
        """Returns a tiling whose tiles of K and V fit the shared memory of any GPU since sm_80. `head_bytes`: of one
        token's K.
        """
        most = _MOST_TILE_BYTES // (2 * head_bytes * max(1, self.num_stages - 1))
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
def _extent(item, first_splits_ptr, context_tokens_ptr, TILE: tl.constexpr):
    """The tokens [first, last) of a split, and how many splits its sequence has. The pointers are its sequence's."""
    first_split = tl.load(first_splits_ptr)
    num_splits = tl.load(first_splits_ptr + 1) - first_split
    context_tokens = tl.load(context_tokens_ptr)
    split_tokens = tl.cdiv(tl.cdiv(context_tokens, TILE), num_splits) * TILE
    first = (item - first_split) * split_tokens
    return first, tl.minimum(first + split_tokens, context_tokens), num_splits


@triton.jit
def _with_tile(highest, total, weighted, products, valid, value):
    """Online softmax: the same sums with a tile more."""
    scores = tl.where(valid[None, :], products, float("-inf"))
    new_highest = tl.maximum(highest, tl.max(scores, axis=1))
    rescale = tl.exp2(highest - new_highest)
    weights = tl.exp2(scores - new_highest[:, None])
    weighted = weighted * rescale[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
    return new_highest, total * rescale + tl.sum(weights, axis=1), weighted


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


@triton.jit
def _keep_whole(out_ptr, heads, mask, lanes, total, weighted, HEAD_DIM: tl.constexpr):
    # Callers add 64 bits as a scalar, heads have 32: vectors of 64 take registers that the loop needs.
    attended = (weighted / total[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + heads[:, None] * HEAD_DIM + lanes[None, :], attended, mask=mask)


@triton.jit(do_not_specialize=["first_column", "num_sequences"])
def _split_kernel(
    query_ptr,
    query_token_stride,
    query_head_stride,
    pool_ptr,
    table_ptr,
    rows_ptr,
    row_stride_ptr,
    context_tokens_ptr,
    sequences_ptr,
    first_splits_ptr,
    num_sequences,
    partial_ptr,
    lse_ptr,
    out_ptr,
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
    item, head = tl.program_id(0), tl.program_id(1)
    sequence = tl.load(sequences_ptr + item).to(tl.int64)
    if sequence >= num_sequences:  # the list is shorter than the grid, which a captured graph fixes
        return
    first, last, num_splits = _extent(item, first_splits_ptr + sequence, context_tokens_ptr + sequence, TILE)
    first_row_ptr = rows_ptr + sequence * tl.load(row_stride_ptr)

    group, lanes, in_tile = tl.arange(0, GROUP_PADDED), tl.arange(0, HEAD_DIM_PADDED), tl.arange(0, TILE)
    query_heads = head * GROUP + group
    query_offsets = sequence * query_token_stride + query_heads[:, None] * query_head_stride + lanes[None, :]
    query_mask = (group < GROUP)[:, None] & (lanes < HEAD_DIM)[None, :]
    query = tl.load(query_ptr + query_offsets, mask=query_mask, other=0.0)
    highest, total = tl.full([GROUP_PADDED], float("-inf"), tl.float32), tl.zeros([GROUP_PADDED], tl.float32)
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
        products = tl.dot(query, tl.trans(key), input_precision="ieee") * scale_log2
        highest, total, weighted = _with_tile(highest, total, weighted, products, valid, value)

    slot = tl.where(num_splits == 1, sequence, item) * tl.num_programs(1) * GROUP
    if num_splits == 1:
        _keep_whole(out_ptr + slot * HEAD_DIM, query_heads, query_mask, lanes, total, weighted, HEAD_DIM)
    else:
        partial_ptr += slot * HEAD_DIM
        _keep_split(partial_ptr, lse_ptr + slot, query_heads, group < GROUP, lanes, highest, total, weighted, HEAD_DIM)


@triton.jit
def _join_kernel(
    partial_ptr,
    lse_ptr,
    first_splits_ptr,
    out_ptr,
    NUM_HEADS: tl.constexpr,
    SPLITS_AT_ONCE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
):
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    first = tl.load(first_splits_ptr + sequence)
    end = tl.load(first_splits_ptr + sequence + 1)
    if end - first == 1:
        return  # the split has written the result
    lanes = tl.arange(0, HEAD_DIM_PADDED)
    highest = -1e30  # of splits without tokens it is minus infinity
    total = 0.0
    weighted = tl.zeros([HEAD_DIM_PADDED], tl.float32)
    for start in range(first, end, SPLITS_AT_ONCE):
        splits = start + tl.arange(0, SPLITS_AT_ONCE)
        valid = splits < end
        slots = splits.to(tl.int64) * NUM_HEADS + head
        lse = tl.load(lse_ptr + slots, mask=valid, other=float("-inf"))
        new_highest = tl.maximum(highest, tl.max(lse, axis=0))
        weights = tl.exp2(lse - new_highest)
        rescale = tl.exp2(highest - new_highest)
        mask = valid[:, None] & (lanes < HEAD_DIM)[None, :]
        partial = tl.load(partial_ptr + slots[:, None] * HEAD_DIM + lanes[None, :], mask=mask, other=0.0)
        weighted = weighted * rescale + tl.sum(partial * weights[:, None], axis=0)
        total = total * rescale + tl.sum(weights, axis=0)
        highest = new_highest
    joined = weighted / tl.where(total > 0.0, total, 1.0)  # padding of a captured batch: no tokens at all
    out = out_ptr + (sequence * NUM_HEADS + head) * HEAD_DIM + lanes
    tl.store(out, joined.to(out_ptr.dtype.element_ty), mask=lanes < HEAD_DIM)


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
    splits: SplitList,
    tiling: DecodeTiling | None = None,
) -> Tensor:
    """One query token per sequence, over `context_tokens` (int32 [sequences], the new token included, 0: padding).

    query: [sequences, heads, head_dim]; pool: [blocks, elements]; table: int32 [max_rows, blocks_per_row]; rows: int32,
    row i of sequence s at `rows[s * row_stride + i]`; row_stride: int32 [1], on the device since a captured graph must
    not hold it; splits: of these contexts. Returns [sequences, heads * head_dim].
    """
    num_sequences, num_heads, head_dim = query.shape
    padded_dim = triton.next_power_of_2(head_dim)
    tiling = tiling or DEFAULT_TILING.fitted(padded_dim * pool.itemsize)
    num_items = len(splits.sequences)
    partial = torch.empty(num_items, num_heads, head_dim, dtype=torch.float32, device=query.device)
    lse = torch.empty(num_items, num_heads, dtype=torch.float32, device=query.device)
    out = torch.empty(num_sequences, num_heads * head_dim, dtype=query.dtype, device=query.device)
    _split_kernel[(num_items, kv_heads)](
        query,
        query.stride(0),
        query.stride(1),
        pool,
        table,
        rows,
        row_stride,
        context_tokens,
        splits.sequences,
        splits.firsts,
        num_sequences,
        partial,
        lse,
        out,
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
    _join(partial, lse, splits, out)
    return out


def _join(partial: Tensor, lse: Tensor, splits: SplitList, out: Tensor) -> None:
    num_heads, head_dim = partial.shape[1:]
    _join_kernel[(len(out), num_heads)](
        partial,
        lse,
        splits.firsts,
        out,
        NUM_HEADS=num_heads,
        SPLITS_AT_ONCE=_SPLITS_AT_ONCE,
        HEAD_DIM=head_dim,
        HEAD_DIM_PADDED=triton.next_power_of_2(head_dim),
    )
