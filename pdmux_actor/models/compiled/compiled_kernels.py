"""All kernels that are compiled for this machine's CPU, as one value to hand on."""

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from pdmux_actor.models.compiled.compiled_linear import CompiledLinear, Int8Kernels
from pdmux_actor.models.compiled.kernels import CpuKernels
from pdmux_actor.models.compiled.panel_linear import PanelKernels, PanelLinear, panels_of, rows_of
from pdmux_actor.models.linear import Linear
from pdmux_actor.models.operators import CPU_MLP_TILE_TOKENS, AllocatingOperators, HeadNorms
from profiler.specs import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledKernels:
    """`panels` multiply in bfloat16, `int8` in 8 bits; None: torch's operators do what kernels would."""

    bfloat16: CpuKernels | None = None
    panels: PanelKernels | None = None
    int8: Int8Kernels | None = None

    @classmethod
    def into(cls, folder: Path) -> "CompiledKernels":
        """Compiles into `folder` what is not there yet and suits this CPU."""
        return cls(
            bfloat16=CpuKernels.compiled_into(folder),
            panels=PanelKernels.compiled_into(folder),
            int8=Int8Kernels.compiled_into(folder),
        )

    def serving(self, spec: ModelSpec) -> CpuKernels | None:
        """Returns `bfloat16` if they are for such a model."""
        return self.bfloat16 if self.bfloat16 is not None and self.bfloat16.serve(spec) else None

    def attending(self, spec: ModelSpec) -> CpuKernels | None:
        """Returns `bfloat16` if they are for the attention of such a model."""
        return self.bfloat16 if self.bfloat16 is not None and self.bfloat16.attend(spec) else None

    def in_panels(self, weight: Tensor, bias: Tensor | None = None) -> PanelLinear | None:
        """Makes a projection by panels, where those serve the weight."""
        if self.panels is None or not self.panels.serve(weight):
            return None
        return PanelLinear.of(self.panels, weight, bias)

    def dense(self, weight: Tensor, bias: Tensor | None = None) -> Linear | CompiledLinear | PanelLinear:
        """Makes a projection of a weight of the activations' dtype, by what is fastest here."""
        if (in_panels := self.in_panels(weight, bias)) is not None:
            return in_panels
        return self._widening(weight, bias) or Linear(weight, bias)

    def laid(self, embedding: Tensor, spec: ModelSpec) -> Tensor:
        """Returns a tied embedding as `tied` and CompiledOperators read it best: in panels, or as it is."""
        in_panels = self.serving(spec) is not None and self.panels is not None and self.panels.serve(embedding)
        return panels_of(embedding) if in_panels else embedding

    def tied(self, embedding: Tensor) -> Linear | CompiledLinear | PanelLinear:
        """Makes a head of an embedding as `laid` returned it, or of some of its rows; both hold the same tensor."""
        if embedding.dim() > 2:
            assert self.panels is not None, "nothing else lays panels"
            return PanelLinear(self.panels, embedding)
        return self._widening(embedding) or Linear(embedding, packed=False)

    def _widening(self, weight: Tensor, bias: Tensor | None = None) -> CompiledLinear | None:
        if self.bfloat16 is None or not (self.bfloat16.multiply and self.bfloat16.multiplies(weight)):
            return None
        return CompiledLinear(self.bfloat16, weight, bias)


BY_TORCH = CompiledKernels()


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
