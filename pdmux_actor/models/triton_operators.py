"""A decoder's small operations as Triton kernels: one launch each, where plain torch takes three to six."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pdmux_actor.models.operators import HeadNorms

_SILU_TILE = 1024


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
    eps,
    HALF: tl.constexpr,
    HALF_PADDED: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    lanes = tl.arange(0, HALF_PADDED)
    mask = lanes < HALF
    base = heads_ptr + token * token_stride + head * head_stride
    low = tl.load(base + lanes, mask=mask, other=0.0).to(tl.float32)
    high = tl.load(base + HALF + lanes, mask=mask, other=0.0).to(tl.float32)
    if HAS_NORM:
        scale = tl.rsqrt((tl.sum(low * low) + tl.sum(high * high)) / (2 * HALF) + eps)
        norm_ptr = query_norm_ptr if head < num_query_heads else key_norm_ptr
        # Rounded where torch's rms_norm rounds, so that both give the same bits but for the order of the sum.
        kind = heads_ptr.dtype.element_ty
        low = (low * scale * tl.load(norm_ptr + lanes, mask=mask, other=0.0).to(tl.float32)).to(kind).to(tl.float32)
        high = (
            (high * scale * tl.load(norm_ptr + HALF + lanes, mask=mask, other=0.0).to(tl.float32))
            .to(kind)
            .to(tl.float32)
        )
    factors = rotary_ptr + token * 4 * HALF
    swapped = factors + rotary_swapped_offset
    cos_low = tl.load(factors + lanes, mask=mask, other=0.0).to(tl.float32)
    cos_high = tl.load(factors + HALF + lanes, mask=mask, other=0.0).to(tl.float32)
    sin_low = tl.load(swapped + lanes, mask=mask, other=0.0).to(tl.float32)
    sin_high = tl.load(swapped + HALF + lanes, mask=mask, other=0.0).to(tl.float32)
    tl.store(base + lanes, (low * cos_low + high * sin_low).to(heads_ptr.dtype.element_ty), mask=mask)
    tl.store(base + HALF + lanes, (high * cos_high + low * sin_high).to(heads_ptr.dtype.element_ty), mask=mask)


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

    mlp_tile_tokens: int | None = None

    def rotate(
        self, query_key: Tensor, rotary: Tensor, norms: HeadNorms | None, num_heads: int, rms_norm_eps: float
    ) -> Tensor:
        num_tokens, all_heads, head_dim = query_key.shape
        assert query_key.stride(2) == 1, "a head's elements lie side by side"
        assert rotary.stride() == (head_dim, 2 * head_dim, head_dim, 1), "the factors of a token lie side by side"
        if num_tokens:
            _rotate_kernel[(num_tokens, all_heads)](
                query_key,
                query_key.stride(0),
                query_key.stride(1),
                rotary,
                rotary.stride(0),
                query_key if norms is None else norms.query,
                query_key if norms is None else norms.key,
                num_heads,
                rms_norm_eps,
                HALF=head_dim // 2,
                HALF_PADDED=triton.next_power_of_2(head_dim // 2),
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
