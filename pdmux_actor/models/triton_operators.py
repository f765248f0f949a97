"""A decoder's small operations as Triton kernels: one launch each, where plain torch takes three to six."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from pdmux_actor.models.operators import HeadNorms

_SILU_TILE = 1024
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


class TritonOperators:
    """Implements DecoderOperators on a GPU."""

    # Enough rows to fill any GPU; a prompt of 100,000 tokens would otherwise take 9 GB between an 8B model's products.
    mlp_tile_tokens: int | None = 4096

    def rms_norm(self, hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
        return functional.rms_norm(hidden, weight.shape, weight, eps)

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
        product = torch.empty(num_tokens, both // 2, dtype=gate_up.dtype, device=gate_up.device)
        if num_tokens:
            grid = (num_tokens, triton.cdiv(both // 2, _SILU_TILE))
            _silu_product_kernel[grid](gate_up.contiguous(), product, both // 2, TILE=_SILU_TILE)
        return product
