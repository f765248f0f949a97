"""Puts modules that compute what some of transformers' do, faster, in their place: products by oneDNN, MLPs in tiles,
norms and rotary embeddings in one pass.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pdmux_actor.models.compiled.compiled_kernels import BY_TORCH, CompiledKernels
from pdmux_actor.models.compiled.int8_linear import CompiledInt8Linear
from pdmux_actor.models.compiled.kernels import CpuKernels
from pdmux_actor.models.compiled.panel_linear import PanelLinear
from pdmux_actor.models.half_rotation import rotate_faster
from pdmux_actor.models.linear import Linear
from pdmux_actor.models.quantised import Int4Linear, Int8Linear

_MLP_TILE_TOKENS = 256  # its intermediate values then stay in a CPU's cache

FixedLayoutLinear = Int8Linear | Int4Linear | CompiledInt8Linear | PanelLinear
Product = Linear | FixedLayoutLinear


class PackedLinear(nn.Module):
    """Stands for a torch.nn.Linear."""

    def __init__(self, linear: Product) -> None:
        super().__init__()
        self.linear = linear

    @property
    def weight(self) -> Tensor:
        """Returns it in the plain layout: a copy where it is packed or quantised."""
        return self.linear.weight

    @property
    def held(self) -> Mapping[str, Tensor | Product | None]:
        """Returns what it holds by the names of a torch.nn.Linear; a weight that is not plain as the product that holds
        it, with its bias unless oneDNN packed it.
        """
        if not isinstance(self.linear, Linear):
            return {"weight": self.linear}
        return {"weight": self.linear if self.linear.is_packed else self.linear.weight, "bias": self.linear.bias}

    @property
    def bias(self) -> Tensor | None:
        return self.linear.bias

    def forward(self, inputs: Tensor) -> Tensor:
        product = self.linear(inputs.reshape(-1, inputs.shape[-1]))
        return product.view(*inputs.shape[:-1], product.shape[-1])


def make_faster(model: Any, kernels: CompiledKernels = BY_TORCH) -> None:  # noqa: ANN401 - transformers has no types
    """Puts them in place, where a module is one of those that they stand for. On GPUs only norms. `kernels` run what
    they can.
    """
    on_cpu = next(model.parameters()).device.type == "cpu"
    embedding = model.get_input_embeddings().weight
    for owner in model.modules():  # children are replaced before it comes to them: none is held once it is packed
        for name in list(owner._modules):
            child = owner._modules[name]
            if type(child) is nn.Linear and on_cpu:
                setattr(owner, name, _packed(child, embedding, kernels))
            elif type(child).__name__.endswith("RMSNorm") and (norm := fused_norm(child, kernels.bfloat16)) is not None:
                setattr(owner, name, norm)
    if on_cpu:
        rotate_faster(model, embedding.dtype, kernels.bfloat16)
    for module in model.modules() if on_cpu else ():
        parts = list(module.children())
        products = [part for part in parts if isinstance(part, PackedLinear)]
        others = [part for part in parts if next(part.parameters(), None) is not None]
        if type(module).__name__.endswith("MLP") and len(products) > 1 and not others:
            module.forward = _tiled(module.forward)


def _tiled(mlp: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Runs an MLP on some tokens after the other."""

    def forward(hidden: Tensor, *others: object, **named: object) -> Tensor:
        if others or named or hidden.shape[-2] <= _MLP_TILE_TOKENS:
            return mlp(hidden, *others, **named)
        tiles = torch.split(hidden, _MLP_TILE_TOKENS, dim=-2)
        return torch.cat([mlp(tile) for tile in tiles], dim=-2)

    return forward


def _packed(linear: nn.Linear, embedding: Tensor, kernels: CompiledKernels) -> PackedLinear:
    """A head that is the embedding stays that."""
    weight, bias = linear.weight.data, None if linear.bias is None else linear.bias.data
    if linear.weight is embedding:
        return PackedLinear(Linear(embedding, bias, packed=False))
    return PackedLinear(kernels.in_panels(weight, bias) or Linear(weight, bias))


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
    """Tries out what a norm computes, which its name does not tell: Gemma's adds one to its weights. None: it is none
    that another stands for.
    """
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
