"""Projections whose weights are kept in 8 or 4 bits; which kernels multiply them was measured
(docs/measurements/engine.md).
"""

import platform
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from pdmux_actor.models.compiled.compiled_kernels import BY_TORCH, CompiledKernels
from pdmux_actor.models.compiled.compiled_linear import CompiledInt8Linear
from pdmux_actor.models.linear import MakeProjection, Projection
from pdmux_actor.models.mxfp4_linear import Mxfp4Linear
from pdmux_actor.models.quantised_weight import QuantisedWeight, rounded_to
from profiler.weight_formats import WEIGHT_FORMATS

_INT8_MAX = 127
_UINT8_ZERO = 128  # oneDNN's fast kernels take unsigned activations
_PACKED_FOR_TOKENS = 16
_CUDA_INNER_TILES = (8, 4, 2)  # of 16 columns each, as many as a row has a multiple of
_CUDA_TILE_COLUMNS = 16
_UNFOLDED_BYTES = 64 << 20  # of a weight's plain numbers that are there at once, on a GPU
_INT4_ROWS_AT_ONCE = 512  # packing takes levels of four bytes; its tiles have 64 rows, or 32 at the end


def projection_maker(weights: str | None, kernels: CompiledKernels = BY_TORCH) -> MakeProjection:
    """Returns what makes projections of weights that are kept so; `weights` is ModelSpec's. `kernels` multiply what
    they serve.
    """
    if weights is None:
        return partial(_dense, kernels)
    if WEIGHT_FORMATS[weights].of_experts:
        return partial(_as_published, kernels)

    def rounded_projection(weight: Tensor | QuantisedWeight, bias: Tensor | None) -> Projection:
        rounded = rounded_to(weights, weight) if isinstance(weight, Tensor) else weight
        if rounded.middle is not None:
            return Int4Linear.of(rounded, bias)
        if kernels.int8 is not None and kernels.int8.serve(rounded):
            return CompiledInt8Linear.of(kernels.int8, rounded, bias)
        return Int8Linear(rounded, bias)

    return rounded_projection


def _dense(kernels: CompiledKernels, weight: Tensor | QuantisedWeight, bias: Tensor | None) -> Projection:
    assert isinstance(weight, Tensor), "levels are for projections that are kept quantised"
    return kernels.dense(weight, bias)


def _as_published(kernels: CompiledKernels, weight: Tensor | QuantisedWeight, bias: Tensor | None) -> Projection:
    if isinstance(weight, Tensor):
        return kernels.dense(weight, bias)
    return Mxfp4Linear.of(weight, bias, kernels.bfloat16)


class Int8Linear:
    """Implements Projection over int8 weights with a scale for each row.

    On an x86 CPU each token's activations are rounded to 8 bits with a scale of their own (torchao's int8 dynamic
    activations), and the product is one of integers: exact, and the same in any batch. Elsewhere they stay as they are.
    A GPU multiplies with some rows of W after the other, in plain numbers: torch's kernel for levels (2.11, and months
    later) has one thread walk along a row for each number of the product, which takes seconds for a prompt.
    """

    def __init__(self, weight: QuantisedWeight, bias: Tensor | None = None, *, packed: bool = True) -> None:
        assert weight.middle is None, "4 bits are Int4Linear's"
        self.bias = bias
        self._scale = weight.scale
        self._is_exact_at_once = torch.cpu._is_vnni_supported()
        self._rounds_activations = weight.levels.device.type == "cpu" and platform.machine() in ("x86_64", "AMD64")
        self._levels = weight.levels
        if self._rounds_activations and packed:
            shape = [_PACKED_FOR_TOKENS, weight.levels.shape[1]]
            self._levels = torch.ops.onednn.qlinear_prepack(weight.levels, shape)
        self._row_scale = weight.scale.float()
        self._zeros = torch.zeros(len(weight.scale), dtype=torch.int64)
        # float16 would overflow before the tokens' own scales come in.
        self._product_dtype = torch.bfloat16 if weight.scale.dtype == torch.bfloat16 else torch.float32

    @property
    def quantised(self) -> QuantisedWeight:
        levels = self._levels.to_dense().t().contiguous() if self._levels.is_mkldnn else self._levels
        return QuantisedWeight(levels=levels, scale=self._scale)

    @property
    def weight(self) -> Tensor:
        """W, a copy."""
        return self.quantised.dense()

    @property
    def dtype(self) -> torch.dtype:
        return self._scale.dtype

    @property
    def tensor_bytes(self) -> tuple[int, ...]:
        sizes = (self._levels.numel(), self._scale.nbytes)
        return sizes if self.bias is None else (*sizes, self.bias.nbytes)

    def copied(self, of_tensor: Callable[[Tensor], Tensor], *, packed: bool) -> "Int8Linear":
        weight = self.quantised
        copy = QuantisedWeight(levels=of_tensor(weight.levels), scale=of_tensor(weight.scale))
        return Int8Linear(copy, None if self.bias is None else of_tensor(self.bias), packed=packed)

    def repacked(self) -> "Int8Linear":
        """Packs it anew, without a copy of the levels on the way."""
        weight = QuantisedWeight(levels=self.quantised.levels, scale=self._scale.clone())
        return Int8Linear(weight, None if self.bias is None else self.bias.clone())

    def __call__(self, inputs: Tensor) -> Tensor:
        if inputs.device.type != "cpu":
            product = self._unfolded_product(inputs)
        elif self._rounds_activations:
            product = self._integer_product(inputs)
        else:
            product = torch.ops.aten._weight_int8pack_mm(inputs, self._levels, self._scale)
        return product if self.bias is None else product.add_(self.bias)

    def plus(self, inputs: Tensor, addend: Tensor) -> Tensor:
        return addend.add_(self(inputs))

    def _unfolded_product(self, inputs: Tensor) -> Tensor:
        num_rows, columns = self._levels.shape
        rows_at_once = max(1, _UNFOLDED_BYTES // (columns * inputs.itemsize))
        product = inputs.new_empty(len(inputs), num_rows)
        for first in range(0, num_rows, rows_at_once):
            rows = slice(first, first + rows_at_once)
            weight = self._levels[rows] * self._scale[rows, None]
            torch.mm(inputs, weight.t(), out=product[:, rows])
        return product

    def _integer_product(self, inputs: Tensor) -> Tensor:
        """Takes x for s (q - 128), with s = max |x| / 127 for each token."""
        steps = torch.linalg.vector_norm(inputs, float("inf"), dim=1, keepdim=True, dtype=torch.float32)
        steps = steps.clamp_(min=torch.finfo(torch.float32).tiny * _INT8_MAX).div_(_INT8_MAX)
        levels = inputs.div(steps).add_(_UINT8_ZERO + 0.5).to(torch.uint8)  # the cast cuts off
        if self._is_exact_at_once:
            product = self._onednns(levels, 1.0, _UINT8_ZERO, self._product_dtype)
        else:  # oneDNN adds pairs of products in 16 bits, which saturate: of 7 bits none does
            product = self._onednns(levels >> 1, 2.0, _UINT8_ZERO // 2, torch.float32)
            product += self._onednns(levels & 1, 1.0, 0, torch.float32)
        return product.mul_(steps).to(inputs.dtype)

    def _onednns(self, levels: Tensor, step: float, zero: int, dtype: torch.dtype) -> Tensor:
        product: Tensor = torch.ops.onednn.qlinear_pointwise(
            levels, step, zero, self._levels, self._row_scale, self._zeros, None, 1.0, 0, dtype, "none", [], "",
        )  # fmt: skip
        return product


class Int4Linear:
    """Implements Projection over 4-bit weights with scale and middle for each group of columns, by torch's kernels."""

    def __init__(self, levels: Tensor, scales: Tensor, group: int, bias: Tensor | None = None) -> None:
        """`levels` as the device's kernel has packed them; `scales` [groups, out, 2] of scales and middles."""
        self.bias = bias
        self._levels, self._scales, self._group = levels, scales, group
        self._multiply = (
            torch.ops.aten._weight_int4pack_mm_for_cpu
            if levels.device.type == "cpu"
            else torch.ops.aten._weight_int4pack_mm
        )

    @classmethod
    def of(cls, weight: QuantisedWeight, bias: Tensor | None = None) -> "Int4Linear":
        assert weight.middle is not None, "8 bits are Int8Linear's"
        levels = weight.levels
        if levels.device.type == "cpu":
            packed = torch.cat(
                [
                    torch.ops.aten._convert_weight_to_int4pack_for_cpu(rows.int(), 1)
                    for rows in torch.split(levels, _INT4_ROWS_AT_ONCE)
                ]
            )
        else:
            pairs = (levels[:, ::2] << 4) | levels[:, 1::2]
            tiles = next(n for n in _CUDA_INNER_TILES if levels.shape[1] % (n * _CUDA_TILE_COLUMNS) == 0)
            packed = torch.ops.aten._convert_weight_to_int4pack(pairs.contiguous(), tiles)
        scales = torch.stack((weight.scale.t(), weight.middle.t()), dim=2).contiguous()
        return cls(packed, scales, levels.shape[1] // weight.scale.shape[1], bias)

    @property
    def weight(self) -> Tensor:
        """W, a copy."""
        columns = self._scales.shape[0] * self._group
        unit = torch.eye(columns, dtype=self.dtype, device=self._scales.device)
        product: Tensor = self._multiply(unit, self._levels, self._group, self._scales)
        return product.t().contiguous()

    @property
    def dtype(self) -> torch.dtype:
        return self._scales.dtype

    @property
    def tensor_bytes(self) -> tuple[int, ...]:
        sizes = (self._levels.nbytes, self._scales.nbytes)
        return sizes if self.bias is None else (*sizes, self.bias.nbytes)

    def copied(self, of_tensor: Callable[[Tensor], Tensor], *, packed: bool) -> "Int4Linear":
        """The layout stays: a copy goes back to the kind of device that it came from."""
        levels, scales = of_tensor(self._levels), of_tensor(self._scales)
        return Int4Linear(levels, scales, self._group, None if self.bias is None else of_tensor(self.bias))

    def repacked(self) -> "Int4Linear":
        return self.copied(torch.clone, packed=True)

    def __call__(self, inputs: Tensor) -> Tensor:
        product: Tensor = self._multiply(inputs, self._levels, self._group, self._scales)
        return product if self.bias is None else product.add_(self.bias)

    def plus(self, inputs: Tensor, addend: Tensor) -> Tensor:
        return addend.add_(self(inputs))
