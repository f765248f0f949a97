"""Matrix products by compiled kernels: what all have in common, and those with weights as they lie in a checkpoint."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Self, TypeVar

import torch
from torch import Tensor

from pdmux_actor.models.compiled.kernels import CpuKernels, pointer_of
from pdmux_actor.models.compiled.library import INT8_KERNELS, compiled_library
from pdmux_actor.models.quantised_weight import QuantisedWeight

KernelsT = TypeVar("KernelsT")


class KernelProjection(Generic[KernelsT]):
    """The part of Projection that says which tensors it is of, and of Classifier."""

    def __init__(self, kernels: KernelsT, *tensors: Tensor | None) -> None:
        """`tensors` as a kernel reads them and a subclass takes them: the first is the weight, the last the bias."""
        self.bias = tensors[-1]
        self._kernels = kernels
        self._tensors = tensors

    @property
    def has_plain_rows(self) -> bool:
        return self.bias is None

    @property
    def tensor_bytes(self) -> tuple[int, ...]:
        return tuple(tensor.nbytes for tensor in self._tensors if tensor is not None)

    def copied(self, of_tensor: Callable[[Tensor], Tensor], *, packed: bool) -> Self:
        """`packed` or not, the layout is the same."""
        return type(self)(self._kernels, *(None if tensor is None else of_tensor(tensor) for tensor in self._tensors))

    def repacked(self) -> Self:
        return self.copied(torch.clone, packed=True)

    def shares(self, tensor: Tensor) -> bool:
        return self._tensors[0] is tensor


class CompiledLinear(KernelProjection[CpuKernels]):
    """Implements Projection over a bfloat16 weight in its plain layout, which may be a tied embedding's."""

    def __init__(self, kernels: CpuKernels, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight = weight.contiguous()
        super().__init__(kernels, self._weight, bias)

    @property
    def dtype(self) -> torch.dtype:
        return self._weight.dtype

    def rows(self, indices: Tensor) -> Tensor:
        return self._weight.index_select(0, indices).float()

    def __call__(self, inputs: Tensor) -> Tensor:
        return self._kernels.linear(inputs, self._weight, self.bias)

    def plus(self, inputs: Tensor, addend: Tensor) -> Tensor:
        return self._kernels.linear(inputs, self._weight, self.bias, addend)

    def float_product(self, inputs: Tensor) -> Tensor:
        """Multiplies float32 inputs in float32: nothing but the weights is ever rounded."""
        return self._kernels.linear(inputs, self._weight, self.bias)


_PANEL_ROWS = 16
_AT_ONCE_COLUMNS = 4
_LANES = 16
_MOST_COLUMNS = 1 << 16  # sums of more might not fit 32 bits
_ZERO = 128  # activations are unsigned

_POINTER, _INT = ctypes.c_void_p, ctypes.c_int64


class Int8Kernels:
    """Runs on as many threads as torch uses on the calling thread: it shares its OpenMP."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.linear = library.muxfleet_int8_linear
        self.linear.argtypes = (_POINTER, _POINTER, _POINTER, _INT, _INT, _POINTER, _INT, _INT, *(_POINTER,) * 3)
        self.linear.restype = None

    @classmethod
    def compiled_into(cls, folder: Path) -> "Int8Kernels | None":
        """None where there is no compiler, or where torch's operators are the faster ones."""
        library = compiled_library(folder, INT8_KERNELS)
        return None if library is None else cls(library)

    @staticmethod
    def serve(weight: QuantisedWeight) -> bool:
        """They are for weights of 8 bits in whole panels, on a CPU, and activations that a kernel reads."""
        rows, columns = weight.levels.shape
        is_read = weight.scale.dtype in (torch.bfloat16, torch.float32) and weight.levels.device.type == "cpu"
        is_whole = rows % _PANEL_ROWS == 0 and columns % _LANES == 0 and columns <= _MOST_COLUMNS
        return weight.middle is None and is_read and is_whole


class CompiledInt8Linear(KernelProjection[Int8Kernels]):
    """Implements Projection as Int8Linear does: each token's activations are rounded to 8 bits with a scale of their
    own, and the product is one of integers, exact and the same in any batch. It is rounded once, with bias and addend.
    """

    def __init__(self, kernels: Int8Kernels, panels: Tensor, scale: Tensor, bias: Tensor | None = None) -> None:
        """`panels` as `of` packs them."""
        super().__init__(kernels, panels, scale, bias)
        self._panels = panels
        self._scale = scale
        self._row_scale = scale.float()
        self._shift = panels.sum(dim=(1, 3), dtype=torch.int32).flatten().mul_(_ZERO)
        self._rows = scale.shape[0]
        columns = panels.shape[1] * _AT_ONCE_COLUMNS
        self.pointers = (panels.data_ptr(), self._shift.data_ptr(), self._row_scale.data_ptr())
        self._shape = (self._rows, columns)
        self._is_float = int(scale.dtype == torch.float32)

    @classmethod
    def of(cls, kernels: Int8Kernels, weight: QuantisedWeight, bias: Tensor | None = None) -> "CompiledInt8Linear":
        rows, columns = weight.levels.shape
        by_panel = weight.levels.view(rows // _PANEL_ROWS, _PANEL_ROWS, columns // _AT_ONCE_COLUMNS, _AT_ONCE_COLUMNS)
        return cls(kernels, by_panel.transpose(1, 2).contiguous(), weight.scale, bias)

    @property
    def weight(self) -> Tensor:
        """W, a copy."""
        levels = self._panels.transpose(1, 2).reshape(len(self._scale), -1)
        return QuantisedWeight(levels=levels, scale=self._scale).dense()

    @property
    def dtype(self) -> torch.dtype:
        return self._scale.dtype

    def __call__(self, inputs: Tensor) -> Tensor:
        return self._product(inputs, None)

    def plus(self, inputs: Tensor, addend: Tensor) -> Tensor:
        return self._product(inputs, addend.contiguous())

    def _product(self, inputs: Tensor, addend: Tensor | None) -> Tensor:
        inputs = inputs.contiguous()
        assert inputs.dtype == self.dtype, "activations have the type of scales"
        tokens = inputs.shape[0]
        product = torch.empty(tokens, self._rows, dtype=self.dtype)
        self._kernels.linear(
            *self.pointers,
            *self._shape,
            inputs.data_ptr(),
            tokens,
            self._is_float,
            pointer_of(self.bias),
            pointer_of(addend),
            product.data_ptr(),
        )
        return product
