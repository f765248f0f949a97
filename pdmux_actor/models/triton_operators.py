"""A decoder's small operations as Triton kernels: one launch each, where plain torch takes three to six."""

from contextlib import AbstractContextManager

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from pdmux_actor.models.linear import Linear, Projection
from pdmux_actor.models.operators import HeadNorms
from pdmux_actor.models.workspace import Workspace

_SILU_TILE = 1024
_NORM_COLUMNS_PER_WARP = 512
_HEADS_TILE = 8  # of 64 lanes each: four elements for each thread


@triton.jit
def _rotate_kernel(
    heads_ptr,
    token_stride,
    head_stride,
    rotary_ptr,
    rotary_swapped_offset,
    query_norm_ptr,
    key_norm_ptr,
    num_query_heads,
    num_heads,
    eps,
    HALF: tl.constexpr,
    HALF_PADDED: tl.constexpr,
    HEADS_TILE: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS_TILE + tl.arange(0, HEADS_TILE)
    lanes = tl.arange(0, HALF_PADDED)
    is_lane = lanes < HALF
    mask = (heads < num_heads)[:, None] & is_lane[None, :]
    base = heads_ptr + token * token_stride + heads[:, None] * head_stride + lanes[None, :]
    low = tl.load(base, mask=mask, other=0.0).to(tl.float32)
    high = tl.load(base + HALF, mask=mask, other=0.0).to(tl.float32)
    kind = heads_ptr.dtype.element_ty
    if HAS_NORM:
        squares = tl.sum(low * low, axis=1) + tl.sum(high * high, axis=1)
        scale = tl.rsqrt(squares / (2 * HALF) + eps)[:, None]
        is_query = (heads < num_query_heads)[:, None]
        query_low = tl.load(query_norm_ptr + lanes, mask=is_lane, other=0.0).to(tl.float32)[None, :]
        query_high = tl.load(query_norm_ptr + HALF + lanes, mask=is_lane, other=0.0).to(tl.float32)[None, :]
        key_low = tl.load(key_norm_ptr + lanes, mask=is_lane, other=0.0).to(tl.float32)[None, :]
        key_high = tl.load(key_norm_ptr + HALF + lanes, mask=is_lane, other=0.0).to(tl.float32)[None, :]
        # Rounded where torch's rms_norm rounds, so that both give the same bits but for the order of the sum.
        low = (low * scale * tl.where(is_query, query_low, key_low)).to(kind).to(tl.float32)
        high = (high * scale * tl.where(is_query, query_high, key_high)).to(kind).to(tl.float32)
    factors = rotary_ptr + token * 4 * HALF
    swapped = factors + rotary_swapped_offset
    cos_low = tl.load(factors + lanes, mask=is_lane, other=0.0).to(tl.float32)[None, :]
    cos_high = tl.load(factors + HALF + lanes, mask=is_lane, other=0.0).to(tl.float32)[None, :]
    sin_low = tl.load(swapped + lanes, mask=is_lane, other=0.0).to(tl.float32)[None, :]
    sin_high = tl.load(swapped + HALF + lanes, mask=is_lane, other=0.0).to(tl.float32)[None, :]
    tl.store(base, (low * cos_low + high * sin_low).to(kind), mask=mask)
    tl.store(base + HALF, (high * cos_high + low * sin_high).to(kind), mask=mask)


@triton.jit
def _silu_product_kernel(gate_up_ptr, out_ptr, width, TILE: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    mask = columns < width
    gate = tl.load(gate_up_ptr + token * 2 * width + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + token * 2 * width + width + columns, mask=mask, other=0.0).to(tl.float32)
    kind = out_ptr.dtype.element_ty
    activated = (gate / (1.0 + tl.exp(-gate))).to(kind).to(tl.float32)
    tl.store(out_ptr + token * width + columns, (activated * up).to(kind), mask=mask)


@triton.jit
def _norm_kernel(hidden_ptr, token_stride, weight_ptr, out_ptr, width, eps, WIDTH_PADDED: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, WIDTH_PADDED)
    mask = columns < width
    weight = tl.load(weight_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    hidden = tl.load(hidden_ptr + token * token_stride + columns, mask=mask, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(hidden * hidden, axis=0) / width + eps)
    tl.store(out_ptr + token * width + columns, (hidden * scale * weight).to(out_ptr.dtype.element_ty), mask=mask)


class TritonOperators:
    """Implements DecoderOperators on a GPU. Results lie in the arena that `workspace` has, where it has one."""

    # Enough rows to fill any GPU; a prompt of 100,000 tokens would otherwise take 9 GB between an 8B model's products.
    mlp_tile_tokens: int | None = 4096

    def __init__(self, workspace: Workspace | None = None) -> None:
        self._workspace = workspace or Workspace()

    def passing(self) -> AbstractContextManager[None]:
        return self._workspace.passing()

    def embedding(self, weight: Tensor, token_ids: Tensor) -> Tensor:
        if not self._workspace.takes:
            return functional.embedding(token_ids, weight)
        embedded = self._workspace.empty((len(token_ids), weight.shape[1]), weight.dtype, weight.device)
        return torch.index_select(weight, 0, token_ids, out=embedded)

    def product(self, projection: Projection, inputs: Tensor) -> Tensor:
        if not (self._workspace.takes and isinstance(projection, Linear)):
            return projection(inputs)
        product = self._workspace.empty((len(inputs), projection.out_features), projection.dtype, inputs.device)
        projection.into(inputs, product)
        return product

    def floats(self, values: Tensor) -> Tensor:
        if not self._workspace.takes or values.dtype == torch.float32:
            return values.float()
        return self._workspace.empty(tuple(values.shape), torch.float32, values.device).copy_(values)

    def rms_norm(self, hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
        assert hidden.stride(1) == 1, "a token's elements lie side by side"
        normed = self._workspace.empty(tuple(hidden.shape), hidden.dtype, hidden.device)
        if len(hidden):
            width = hidden.shape[1]
            padded = triton.next_power_of_2(width)
            warps = min(16, max(1, padded // _NORM_COLUMNS_PER_WARP))
            _norm_kernel[(len(hidden),)](
                hidden, hidden.stride(0), weight, normed, width, eps, WIDTH_PADDED=padded, num_warps=warps
            )
        return normed

    def rotate(
        self, query_key: Tensor, rotary: Tensor, norms: HeadNorms | None, num_heads: int, rms_norm_eps: float
    ) -> Tensor:
        num_tokens, all_heads, head_dim = query_key.shape
        assert query_key.stride(2) == 1, "a head's elements lie side by side"
        assert rotary.stride() == (head_dim, 2 * head_dim, head_dim, 1), "the factors of a token lie side by side"
        if num_tokens:
            _rotate_kernel[(num_tokens, triton.cdiv(all_heads, _HEADS_TILE))](
                query_key,
                query_key.stride(0),
                query_key.stride(1),
                rotary,
                rotary.stride(0),
                query_key if norms is None else norms.query,
                query_key if norms is None else norms.key,
                num_heads,
                all_heads,
                rms_norm_eps,
                HALF=head_dim // 2,
                HALF_PADDED=triton.next_power_of_2(head_dim // 2),
                HEADS_TILE=_HEADS_TILE,
                HAS_NORM=norms is not None,
            )
        return query_key

    def silu_product(self, gate_up: Tensor) -> Tensor:
        num_tokens, both = gate_up.shape
        product = self._workspace.empty((num_tokens, both // 2), gate_up.dtype, gate_up.device)
        if num_tokens:
            grid = (num_tokens, triton.cdiv(both // 2, _SILU_TILE))
            _silu_product_kernel[grid](gate_up.contiguous(), product, both // 2, TILE=_SILU_TILE)
        return product
