"""Matrix products by compiled kernels: what all have in common, and those with weights as they lie in a checkpoint."""

from collections.abc import Callable
from typing import Generic, Self, TypeVar

import torch
from torch import Tensor

from pdmux_actor.models.compiled.kernels import CpuKernels

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
