"""RMS norms of transformers in one pass. What a norm computes is tried out, not read from its name: Gemma's adds one to
its weights.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from pdmux_actor.models.compiled.kernels import CpuKernels

_TRIED_ROWS = 3


class FusedNorm(nn.Module):
    """Stands for an RMS norm; `weight` is the norm's own, `scale` what it multiplies by."""

    def __init__(self, weight: nn.Parameter, scale: Tensor, eps: float, kernels: CpuKernels | None = None) -> None:
        super().__init__()
        self.weight = weight
        self._scale = scale
        self._eps = eps
        self._kernels = kernels if kernels is not None and kernels.norm(scale) else None

    def forward(self, hidden: Tensor) -> Tensor:
        if self._kernels is None:
            return functional.rms_norm(hidden, self._scale.shape, self._scale, self._eps)
        rows = hidden.reshape(-1, hidden.shape[-1])
        return self._kernels.rms_norm(rows.contiguous(), self._scale, self._eps).view(hidden.shape)


def fused_norm(norm: nn.Module, kernels: CpuKernels | None = None) -> FusedNorm | None:
    """None: it is none that another stands for."""
    weight = getattr(norm, "weight", None)
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    if not isinstance(weight, nn.Parameter) or weight.dim() != 1 or not isinstance(eps, float):
        return None
    if len(list(norm.parameters())) != 1:
        return None
    tried = torch.linspace(-2, 3, _TRIED_ROWS * len(weight), device=weight.device, dtype=weight.dtype)
    tried = tried.view(1, _TRIED_ROWS, len(weight))
    expected = norm(tried)
    for scale in (weight.data, weight.data + 1):
        fused = FusedNorm(weight, scale, eps, kernels)
        if torch.allclose(fused(tried), expected, rtol=2 * torch.finfo(weight.dtype).eps, atol=1e-5):
            return fused
    return None
