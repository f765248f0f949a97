"""A matrix product with weights as they lie in a checkpoint, by a compiled kernel."""

from collections.abc import Callable

import torch
from torch import Tensor

from pdmux_actor.models.compiled.kernels import CpuKernels


class CompiledLinear:
    """Implements Projection over a bfloat16 weight in its plain layout, which may be a tied embedding's."""

    def __init__(self, kernels: CpuKernels, weight: Tensor, bias: Tensor | None = None) -> None:
        self.bias = bias
        self._kernels = kernels
        self._weight = weight.contiguous()

    @property
    def dtype(self) -> torch.dtype:
        return self._weight.dtype

    @property
    def has_plain_rows(self) -> bool:
        return self.bias is None

    def rows(self, indices: Tensor) -> Tensor:
        return self._weight.index_select(0, indices).float()

    @property
    def tensor_bytes(self) -> tuple[int, ...]:
        return (self._weight.nbytes,) if self.bias is None else (self._weight.nbytes, self.bias.nbytes)

    def copied(self, of_tensor: Callable[[Tensor], Tensor], *, packed: bool) -> "CompiledLinear":
        """`packed` or not, the layout is the same."""
        return CompiledLinear(
            self._kernels, of_tensor(self._weight), None if self.bias is None else of_tensor(self.bias)
        )

    def repacked(self) -> "CompiledLinear":
        return self.copied(torch.clone, packed=True)

    def shares(self, tensor: Tensor) -> bool:
        return self._weight is tensor

    def __call__(self, inputs: Tensor) -> Tensor:
        return self._kernels.linear(inputs, self._weight, self.bias)

    def plus(self, inputs: Tensor, addend: Tensor) -> Tensor:
        return self._kernels.linear(inputs, self._weight, self.bias, addend)

    def float_product(self, inputs: Tensor) -> Tensor:
        """Multiplies float32 inputs in float32: nothing but the weights is ever rounded."""
        return self._kernels.linear(inputs, self._weight, self.bias)
