"""Rotary embeddings of transformers' attention in a few operations, where they swap the halves of a head.

An attention module calls the function by its name in the file that defines it. Its forward is bound again, with another
function under that name: transformers' own modules stay as they are. What the function computes is tried out.
"""

import threading
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from pdmux_actor.models.compiled.kernels import CpuKernels

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
