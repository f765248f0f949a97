"""The small operations between a decoder's matrix products, which each kind of device fuses in its own way."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from pdmux_actor.models.linear import Projection

# Tokens that go through an MLP at once on a CPU: its intermediate values then stay in the cache.
CPU_MLP_TILE_TOKENS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadNorms:
    """Qwen3's RMS norms over each query and key head; weights `[head_dim]`."""

    query: Tensor
    key: Tensor


class DecoderOperators(Protocol):
    mlp_tile_tokens: int | None
    """That go through an MLP at once; None: all."""

    def passing(self) -> AbstractContextManager[None]:
        """Encloses all uses of what the other operations make within it."""
        ...

    def embedding(self, weight: Tensor, token_ids: Tensor) -> Tensor:
        """[vocab_size, width], [tokens] -> [tokens, width]."""
        ...

    def product(self, projection: Projection, inputs: Tensor) -> Tensor:
        """Returns what `projection` makes of `inputs`."""
        ...

    def floats(self, values: Tensor) -> Tensor:
        """The same in float32; `values` themselves where they are."""
        ...

    def rms_norm(self, hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
        """[tokens, width] -> the same shape."""
        ...

    def rotate(
        self, query_key: Tensor, rotary: Tensor, norms: HeadNorms | None, num_heads: int, rms_norm_eps: float
    ) -> Tensor:
        """Normed, where the model does that, and rotated heads.

        query_key: [tokens, query heads, then key heads, head_dim], may be overwritten; the first `num_heads` are
        queries. rotary: [2, tokens, 1, head_dim], the factors of x and of x with its halves swapped.
        """
        ...

    def silu_product(self, gate_up: Tensor) -> Tensor:
        """[tokens, 2 * n] -> silu(gate) * up, [tokens, n]."""
        ...


class AllocatingOperators:
    """The part of DecoderOperators that says where results lie: wherever torch's allocator says."""

    def passing(self) -> AbstractContextManager[None]:
        return nullcontext()

    def embedding(self, weight: Tensor, token_ids: Tensor) -> Tensor:
        return functional.embedding(token_ids, weight)

    def product(self, projection: Projection, inputs: Tensor) -> Tensor:
        return projection(inputs)

    def floats(self, values: Tensor) -> Tensor:
        return values.float()


class TorchOperators(AllocatingOperators):
    """Implements DecoderOperators with plain torch."""

    mlp_tile_tokens: int | None = CPU_MLP_TILE_TOKENS

    def rms_norm(self, hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
        return functional.rms_norm(hidden, weight.shape, weight, eps)

    def rotate(
        self, query_key: Tensor, rotary: Tensor, norms: HeadNorms | None, num_heads: int, rms_norm_eps: float
    ) -> Tensor:
        if norms is not None:
            query = functional.rms_norm(query_key[:, :num_heads], norms.query.shape, norms.query, rms_norm_eps)
            key = functional.rms_norm(query_key[:, num_heads:], norms.key.shape, norms.key, rms_norm_eps)
            query_key = torch.cat((query, key), dim=1)
        # The half-split layout: x * cos + swap_halves(x) * (-sin, sin).
        swapped = query_key.roll(query_key.shape[-1] // 2, dims=-1)
        return torch.addcmul(query_key * rotary[0], swapped, rotary[1])

    def silu_product(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, -1)
        return functional.silu(gate).mul_(up)
