"""Triton kernels that move K and V between a launch's tensors and the block pool.

A row's physical blocks stand in a device table `[max_rows, blocks_per_row]` of int32 (see KvGeometry): a launch names
rows, never blocks, so that no table of layers x heads crosses the bus.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pdmux_actor.models.workspace import Workspace


# One variant serves every layer: a layer's first column is no reason to compile again.
@triton.jit(do_not_specialize=["first_column"])
def _store_kernel(
    key_ptr,
    value_ptr,
    token_stride,
    head_stride,
    pool_ptr,
    table_ptr,
    rows_ptr,
    positions_ptr,
    first_column,
    block_elements,
    BLOCKS_PER_ROW: tl.constexpr,
    TOKENS_PER_ROW: tl.constexpr,
    KV_HEADS: tl.constexpr,
    KV_HEADS_PADDED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + token).to(tl.int64)
    if row >= 0:  # padding of a captured batch has no row
        heads, lanes = tl.arange(0, KV_HEADS_PADDED), tl.arange(0, HEAD_DIM_PADDED)
        is_head = heads < KV_HEADS
        mask = is_head[:, None] & (lanes < HEAD_DIM)[None, :]
        columns = table_ptr + row * BLOCKS_PER_ROW + first_column + heads
        block = tl.load(columns, mask=is_head, other=0).to(tl.int64)
        offset = (tl.load(positions_ptr + token) % TOKENS_PER_ROW).to(tl.int64)
        target = pool_ptr + (block * block_elements + offset * 2 * HEAD_DIM)[:, None] + lanes[None, :]
        source = token * token_stride + heads[:, None] * head_stride + lanes[None, :]
        tl.store(target, tl.load(key_ptr + source, mask=mask), mask=mask)
        tl.store(target + HEAD_DIM, tl.load(value_ptr + source, mask=mask), mask=mask)


# A piece of a batch's contexts begins anywhere: each program reads one number of either.
@triton.jit(do_not_specialize=["first_column", "num_heads"], do_not_specialize_on_alignment=["rows_ptr", "offsets_ptr"])
def _gather_kernel(
    pool_ptr,
    table_ptr,
    rows_ptr,
    offsets_ptr,
    key_ptr,
    value_ptr,
    first_column,
    num_heads,
    block_elements,
    BLOCKS_PER_ROW: tl.constexpr,
    KV_HEADS_PADDED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    heads, lanes = tl.arange(0, KV_HEADS_PADDED), tl.arange(0, HEAD_DIM_PADDED)
    is_head = heads < num_heads
    mask = is_head[:, None] & (lanes < HEAD_DIM)[None, :]
    row = tl.load(rows_ptr + token).to(tl.int64)
    block = tl.load(table_ptr + row * BLOCKS_PER_ROW + first_column + heads, mask=is_head, other=0).to(tl.int64)
    offset = tl.load(offsets_ptr + token).to(tl.int64)
    source = pool_ptr + (block * block_elements + offset * 2 * HEAD_DIM)[:, None] + lanes[None, :]
    target = (token * num_heads + heads)[:, None] * HEAD_DIM + lanes[None, :]
    tl.store(key_ptr + target, tl.load(source, mask=mask), mask=mask)
    tl.store(value_ptr + target, tl.load(source + HEAD_DIM, mask=mask), mask=mask)


def store_kv(
    pool: Tensor,
    table: Tensor,
    rows: Tensor,
    positions: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    layer: int,
    tokens_per_row: int,
) -> None:
    """pool: [blocks, elements]; rows, positions: int32 [tokens], row -1 is padding; key, value: [tokens, kv_heads,
    head_dim].
    """
    num_tokens, kv_heads, head_dim = key.shape
    if key.stride() != value.stride():  # of a model that runs by transformers' code, as its projections are laid
        key, value = torch.stack((key, value)).unbind()
    assert key.stride(2) == 1, "a head's elements lie side by side"
    if num_tokens:
        _store_kernel[(num_tokens,)](
            key,
            value,
            key.stride(0),
            key.stride(1),
            pool,
            table,
            rows,
            positions,
            layer * kv_heads,
            pool.stride(0),
            BLOCKS_PER_ROW=table.shape[1],
            TOKENS_PER_ROW=tokens_per_row,
            KV_HEADS=kv_heads,
            KV_HEADS_PADDED=triton.next_power_of_2(kv_heads),
            HEAD_DIM=head_dim,
            HEAD_DIM_PADDED=triton.next_power_of_2(head_dim),
        )


def gather_kv(
    pool: Tensor,
    table: Tensor,
    rows: Tensor,
    offsets: Tensor,
    *,
    layer: int,
    kv_heads: int,
    head_dim: int,
    heads: range | None = None,
    workspace: Workspace | None = None,
) -> tuple[Tensor, Tensor]:
    """K and V `[tokens, heads, head_dim]` of the tokens at `offsets` of `rows` (int32 [tokens] each), of some of the
    layer's KV `heads`; None: of all. `workspace` None: by torch's allocator.
    """
    heads = range(kv_heads) if heads is None else heads
    shape, places = (rows.shape[0], len(heads), head_dim), workspace or Workspace()
    key, value = (places.empty(shape, pool.dtype, pool.device) for _ in range(2))
    if len(rows):
        _gather_kernel[(rows.shape[0],)](
            pool,
            table,
            rows,
            offsets,
            key,
            value,
            layer * kv_heads + heads.start,
            len(heads),
            pool.stride(0),
            BLOCKS_PER_ROW=table.shape[1],
            KV_HEADS_PADDED=triton.next_power_of_2(kv_heads),
            HEAD_DIM=head_dim,
            HEAD_DIM_PADDED=triton.next_power_of_2(head_dim),
        )
    return key, value
