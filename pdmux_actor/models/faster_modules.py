"""Puts modules that compute what some of transformers' do, faster, in their place: products by oneDNN, MLPs in tiles,
norms and rotary embeddings in one pass.
"""

import threading
from collections.abc import Callable, Mapping
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pdmux_actor.models.compiled.compiled_kernels import BY_TORCH, CompiledKernels
from pdmux_actor.models.compiled.compiled_linear import CompiledInt8Linear
from pdmux_actor.models.compiled.kernels import CpuKernels
from pdmux_actor.models.compiled.panel_linear import PanelLinear
from pdmux_actor.models.linear import Linear
from pdmux_actor.models.quantised import Int4Linear, Int8Linear

_NAME = "apply_rotary_pos_emb"
_TRIED_HEAD_DIM = 64
_TRIED_TOKENS = 3

Rotate = Callable[..., tuple[Tensor, Tensor]]


def rotate_faster(model: nn.Module, dtype: torch.dtype, kernels: CpuKernels | None = None) -> None:
    """`dtype` is that of its activations."""
    bound: dict[type, FunctionType | None] = {}
    for module in model.modules():
        kind = type(module)
        if kind not in bound:
            bound[kind] = _bound_again(kind.forward, dtype, kernels)
        if (forward := bound[kind]) is not None:
            module.forward = MethodType(forward, module)


def _bound_again(forward: object, dtype: torch.dtype, kernels: CpuKernels | None) -> FunctionType | None:
    """None: it calls no such function, or one that computes something else."""
    if not isinstance(forward, FunctionType) or _NAME not in forward.__code__.co_names:
        return None
    own = forward.__globals__.get(_NAME)
    if not callable(own):
        return None
    rotation = HalfRotation(own, kernels)
    if not _is_the_same(own, rotation, dtype):
        return None
    names = {**forward.__globals__, _NAME: rotation}
    again = FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__)
    again.__kwdefaults__ = forward.__kwdefaults__
    return again


class HalfRotation:
    """Stands for `own`, which it calls for what it does not know: queries and keys, [1, heads, tokens, head_dim],
    become x cos + (-x2, x1) sin, with x1 and x2 the halves of each head and cos and sin [1, tokens, head_dim].
    """

    def __init__(self, own: Rotate, kernels: CpuKernels | None = None) -> None:
        self._own = own
        self._kernels = kernels
        self._local = threading.local()

    def __call__(self, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, *others: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever the function takes
        if others or any(name != "unsqueeze_dim" or value != 1 for name, value in named.items()):
            return self._own(query, key, cos, sin, *others, **named)
        if not self._knows(query, cos) or not self._knows(key, cos) or sin.shape != cos.shape:
            return self._own(query, key, cos, sin, *others, **named)
        if self._kernels is not None and self._kernels.rotate_heads(query) and self._kernels.rotate_heads(key):
            return self._compiled(self._kernels, query, cos, sin), self._compiled(self._kernels, key, cos, sin)
        signed = self._signed(sin)
        return _turned(query, cos, signed), _turned(key, cos, signed)

    @staticmethod
    def _knows(heads: Tensor, cos: Tensor) -> bool:
        return heads.dim() == 4 and cos.dtype == heads.dtype and cos.shape == (1, heads.shape[2], heads.shape[3])

    @staticmethod
    def _compiled(kernels: CpuKernels, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        by_token = heads[0].transpose(0, 1)
        if by_token.stride()[1:] != (by_token.shape[2], 1):
            by_token = by_token.contiguous()
        return kernels.rotated(by_token, cos[0].contiguous(), sin[0].contiguous()).transpose(0, 1)[None]

    def _signed(self, sin: Tensor) -> Tensor:
        """`sin` with its first half negated, once for all layers of a step: they are given the same tensor."""
        if getattr(self._local, "sin", None) is not sin:
            first, second = sin.chunk(2, dim=-1)
            self._local.sin, self._local.signed = sin, torch.cat((-first, second), dim=-1)
        signed: Tensor = self._local.signed
        return signed


def _turned(heads: Tensor, cos: Tensor, signed: Tensor) -> Tensor:
    swapped = heads.roll(heads.shape[-1] // 2, dims=-1)
    return torch.addcmul(heads * cos[:, None], swapped, signed[:, None])


def _is_the_same(own: Rotate, rotation: HalfRotation, dtype: torch.dtype) -> bool:
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator).sub(0.5).to(dtype)

    query, key = (drawn(1, heads, _TRIED_TOKENS, _TRIED_HEAD_DIM) for heads in (2, 1))
    angles = torch.rand(1, _TRIED_TOKENS, _TRIED_HEAD_DIM // 2, generator=generator).mul(6.0).repeat(1, 1, 2)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    try:
        expected = own(query, key, cos, sin)
    except (TypeError, ValueError, RuntimeError, IndexError):  # it takes other arguments
        return False
    made = rotation(query, key, cos, sin)
    if not isinstance(expected, tuple) or len(expected) != len(made):
        return False
    return all(
        one.shape == other.shape
        and one.dtype == other.dtype
        and torch.allclose(one, other, rtol=0.0, atol=4 * torch.finfo(dtype).eps)
        for one, other in zip(expected, made, strict=True)
    )


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
