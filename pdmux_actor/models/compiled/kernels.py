"""The compiled kernels as functions of tensors, all in bfloat16 unless they say otherwise."""

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pdmux_actor.models.compiled.library import BFLOAT16_KERNELS, compiled_library, multiply_best
from profiler.specs import ModelSpec


def pointer_of(tensor: Tensor | None) -> int | None:
    """Returns null where there is no tensor."""
    return None if tensor is None else tensor.data_ptr()


_LANES = 32  # numbers that are widened at once: a width must be divisible by it
_MOST_HEAD_DIM = 256

_POINTER, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_ARGUMENTS: Mapping[str, Sequence[Any]] = {
    "linear": (_POINTER, _INT, _INT, _POINTER, _POINTER, _INT, *(_POINTER,) * 5),
    "mxfp4_linear": (_POINTER, _POINTER, _INT, _INT, _POINTER, _INT, _POINTER, _POINTER, _POINTER),
    "mxfp4_unpacked": (_POINTER, _POINTER, _INT, _INT, _POINTER),
    "rms_norm": (_POINTER, _POINTER, _FLOAT, _INT, _INT, _POINTER),
    "silu_product": (_POINTER, _INT, _INT, _POINTER),
    "rotate": (
        *(_POINTER, *(_INT,) * 5, _POINTER, _POINTER, _INT, _FLOAT),
        *(_POINTER, _POINTER, _FLOAT, _POINTER, _INT),
    ),
    "keep": (_POINTER, _INT, _POINTER, *(_INT,) * 4, _POINTER, _INT, _POINTER, _INT, _INT, _POINTER, _POINTER),
    "decode_attention": (
        *(_POINTER, _INT, _POINTER, _INT, _POINTER, _INT, _INT, _POINTER, _INT, _POINTER),
        *(_INT,) * 5,
        *(_FLOAT, _INT, _FLOAT, _POINTER, _POINTER),
    ),
}


class CpuKernels:
    """Kernels run on as many threads as torch uses on the calling thread: they share its OpenMP."""

    def __init__(self, library: ctypes.CDLL, *, multiply: bool = True) -> None:
        """`multiply`: products, too, are best made by these kernels, and not by oneDNN."""
        self.multiply = multiply
        for name, arguments in _ARGUMENTS.items():
            function = getattr(library, f"muxfleet_{name}")
            function.argtypes, function.restype = arguments, None
        self._linear = library.muxfleet_linear
        self._mxfp4_linear = library.muxfleet_mxfp4_linear
        self._mxfp4_unpacked = library.muxfleet_mxfp4_unpacked
        self._rms_norm = library.muxfleet_rms_norm
        self._silu_product = library.muxfleet_silu_product
        self._rotate = library.muxfleet_rotate
        self.keep = library.muxfleet_keep
        self.decode_attention = library.muxfleet_decode_attention

    @classmethod
    def compiled_into(cls, folder: Path) -> "CpuKernels | None":
        """None where there is no compiler, and on CPUs that they are not for."""
        library = compiled_library(folder, BFLOAT16_KERNELS)
        return None if library is None else cls(library, multiply=multiply_best())

    @staticmethod
    def serve(spec: ModelSpec) -> bool:
        """They are for models whose activations are bfloat16 and whose widths are whole vectors."""
        widths = (spec.hidden_size, spec.intermediate_size, spec.expert_intermediate_size)
        return CpuKernels.attend(spec) and not any(width % _LANES for width in widths)

    @staticmethod
    def attend(spec: ModelSpec) -> bool:
        """They are for the attention of any model in bfloat16 whose heads are whole vectors."""
        return spec.dtype == "bfloat16" and spec.head_dim <= _MOST_HEAD_DIM and spec.head_dim % _LANES == 0

    @staticmethod
    def multiplies(weight: Tensor) -> bool:
        """They are for products with such a weight."""
        return weight.dtype == torch.bfloat16 and weight.device.type == "cpu" and weight.shape[1] % _LANES == 0

    @staticmethod
    def norm(scale: Tensor) -> bool:
        """They are for norms with such a scale."""
        return scale.dtype == torch.bfloat16 and scale.device.type == "cpu" and len(scale) % _LANES == 0

    @staticmethod
    def rotate_heads(heads: Tensor) -> bool:
        """They are for such heads, [1, heads, tokens, head_dim]."""
        batch, head_dim = heads.shape[0], heads.shape[3]
        return heads.dtype == torch.bfloat16 and batch == 1 and head_dim <= _MOST_HEAD_DIM and head_dim % _LANES == 0

    def linear(self, inputs: Tensor, weight: Tensor, bias: Tensor | None, addend: Tensor | None = None) -> Tensor:
        """Inputs times W^T, plus bias and addend. `inputs` in float32: so is the product, and there is no addend."""
        inputs = inputs.contiguous()
        tokens, columns = inputs.shape
        product = torch.empty(tokens, len(weight), dtype=inputs.dtype)
        assert weight.dtype == torch.bfloat16, "the kernels read weights in bfloat16"
        assert columns % _LANES == 0, f"{columns} columns are no whole vectors"
        is_float = inputs.dtype == torch.float32
        widened = torch.empty(tokens * columns, dtype=torch.float32)
        self._linear(
            weight.data_ptr(),
            len(weight),
            columns,
            None if is_float else inputs.data_ptr(),
            inputs.data_ptr() if is_float else None,
            tokens,
            pointer_of(bias),
            None if addend is None else addend.contiguous().data_ptr(),
            None if is_float else product.data_ptr(),
            product.data_ptr() if is_float else None,
            widened.data_ptr(),
        )
        return product

    def mxfp4_linear(self, inputs: Tensor, blocks: Tensor, exponents: Tensor, bias: Tensor | None) -> Tensor:
        """Inputs times W^T, plus bias, for few tokens. blocks: [out, in / 2]; exponents: [out, in / 32]."""
        inputs = inputs.contiguous()
        tokens, columns = inputs.shape
        product = torch.empty(tokens, len(blocks), dtype=inputs.dtype)
        widened = torch.empty(tokens * columns, dtype=torch.float32)
        self._mxfp4_linear(
            *(blocks.data_ptr(), exponents.data_ptr(), len(blocks), columns, inputs.data_ptr(), tokens),
            *(pointer_of(bias), product.data_ptr(), widened.data_ptr()),
        )
        return product

    def mxfp4_unpacked(self, blocks: Tensor, exponents: Tensor) -> Tensor:
        """W, [out, in]."""
        rows, columns = len(blocks), 2 * blocks.shape[1]
        made = torch.empty(rows, columns, dtype=torch.bfloat16)
        self._mxfp4_unpacked(blocks.data_ptr(), exponents.data_ptr(), rows, columns, made.data_ptr())
        return made

    def rms_norm(self, hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
        """[tokens, width]; computed in float32 and rounded once."""
        normed = torch.empty_like(hidden)
        self._rms_norm(hidden.data_ptr(), weight.data_ptr(), eps, *hidden.shape, normed.data_ptr())
        return normed

    def silu_product(self, gate_up: Tensor) -> Tensor:
        """[tokens, 2 * n] -> [tokens, n]."""
        tokens, both = gate_up.shape
        product = torch.empty(tokens, both // 2, dtype=gate_up.dtype)
        self._silu_product(gate_up.data_ptr(), tokens, both // 2, product.data_ptr())
        return product

    def rotate(
        self, heads: Tensor, num_queries: int, rotary: Tensor, norms: tuple[Tensor, Tensor] | None, eps: float
    ) -> None:
        """Works in place. heads: [tokens, heads, head_dim], side by side; rotary: [2, tokens, 1, head_dim]."""
        tokens, num_heads, head_dim = heads.shape
        query_norm, key_norm = (None, None) if norms is None else (norm.data_ptr() for norm in norms)
        at, stride, of_x = heads.data_ptr(), heads.stride(0), rotary.data_ptr()
        of_swapped = of_x + rotary.stride(0) * rotary.itemsize
        num_keys = num_heads - num_queries
        self._rotate(
            *(at, stride, tokens, num_queries, num_keys, head_dim, of_x, of_swapped, rotary.stride(1), 1.0),
            *(query_norm, key_norm, eps, at, stride),
        )

    def rotated(self, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Makes x cos + (-x2, x1) sin of the halves x1, x2 of each head. heads: [tokens, heads, head_dim], side by
        side; cos, sin: [tokens, head_dim], dense.
        """
        tokens, num_heads, head_dim = heads.shape
        made = torch.empty(tokens, num_heads, head_dim, dtype=heads.dtype)
        self._rotate(
            *(heads.data_ptr(), heads.stride(0), tokens, num_heads, 0, head_dim),
            *(cos.data_ptr(), sin.data_ptr(), head_dim, -1.0),
            *(None, None, 0.0, made.data_ptr(), num_heads * head_dim),
        )
        return made
