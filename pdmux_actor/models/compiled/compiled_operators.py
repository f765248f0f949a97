"""The small operations between a decoder's matrix products, each one compiled pass over its numbers."""

from torch import Tensor

from pdmux_actor.models.compiled.kernels import CpuKernels
from pdmux_actor.models.compiled.panel_linear import rows_of
from pdmux_actor.models.operators import CPU_MLP_TILE_TOKENS, AllocatingOperators, HeadNorms


class CompiledOperators(AllocatingOperators):
    """Implements DecoderOperators."""

    mlp_tile_tokens: int | None = CPU_MLP_TILE_TOKENS

    def __init__(self, kernels: CpuKernels) -> None:
        self._kernels = kernels

    def embedding(self, weight: Tensor, token_ids: Tensor) -> Tensor:
        """`weight` may lie in panels: one that is the head's, too."""
        return super().embedding(weight, token_ids) if weight.dim() == 2 else rows_of(weight, token_ids)

    def rms_norm(self, hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
        return self._kernels.rms_norm(hidden, weight, eps)

    def rotate(
        self, query_key: Tensor, rotary: Tensor, norms: HeadNorms | None, num_heads: int, rms_norm_eps: float
    ) -> Tensor:
        weights = None if norms is None else (norms.query, norms.key)
        self._kernels.rotate(query_key, num_heads, rotary, weights, rms_norm_eps)
        return query_key

    def silu_product(self, gate_up: Tensor) -> Tensor:
        return self._kernels.silu_product(gate_up)
