"""A matrix product of bfloat16 numbers, by a compiled kernel over weights in panels."""

import torch
from torch import Tensor

from pdmux_actor.models.compiled.compiled_linear import KernelProjection
from pdmux_actor.models.compiled.kernels import pointer_of
from pdmux_actor.models.compiled.panel_kernels import AT_ONCE_COLUMNS, PANEL_ROWS, PanelKernels


def panels_of(weight: Tensor) -> Tensor:
    """[rows, columns] -> [rows / 16, columns / 2, 16, 2]: a copy, of which a kernel reads 16 rows at once."""
    rows, columns = weight.shape
    by_panel = weight.reshape(rows // PANEL_ROWS, PANEL_ROWS, columns // AT_ONCE_COLUMNS, AT_ONCE_COLUMNS)
    return by_panel.transpose(1, 2).contiguous()


def rows_of(panels: Tensor, indices: Tensor) -> Tensor:
    """Returns rows `indices` of the weight that lies in `panels`, [indices, columns]."""
    found = panels.transpose(1, 2)[indices // PANEL_ROWS, indices % PANEL_ROWS]
    return found.reshape(len(indices), -1)


class PanelLinear(KernelProjection[PanelKernels]):
    """Implements Classifier. A token's product has the same bits in any batch."""

    def __init__(self, kernels: PanelKernels, panels: Tensor, bias: Tensor | None = None) -> None:
        """`panels` as `of` lays them."""
        super().__init__(kernels, panels, bias)
        self.panels = panels
        self.pointers = (panels.data_ptr(), None, None)  # beside it neither shifts nor scales
        self._shape = (panels.shape[0] * PANEL_ROWS, panels.shape[1] * AT_ONCE_COLUMNS)

    @classmethod
    def of(cls, kernels: PanelKernels, weight: Tensor, bias: Tensor | None = None) -> "PanelLinear":
        return cls(kernels, panels_of(weight), bias)

    @property
    def weight(self) -> Tensor:
        """W, a copy."""
        return self.panels.transpose(1, 2).reshape(self._shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.panels.dtype

    def rows(self, indices: Tensor) -> Tensor:
        return rows_of(self.panels, indices).float()

    def __call__(self, inputs: Tensor) -> Tensor:
        return self._product(inputs, None)

    def plus(self, inputs: Tensor, addend: Tensor) -> Tensor:
        return self._product(inputs, addend.contiguous())

    def _product(self, inputs: Tensor, addend: Tensor | None) -> Tensor:
        inputs = inputs.contiguous()
        assert inputs.dtype == torch.bfloat16, "the kernel reads activations in bfloat16"
        tokens = inputs.shape[0]
        product = torch.empty(tokens, self._shape[0], dtype=torch.bfloat16)
        self._kernels.linear(
            *(self.panels.data_ptr(), *self._shape, inputs.data_ptr(), tokens),
            *(pointer_of(self.bias), pointer_of(addend), product.data_ptr()),
        )
        return product
