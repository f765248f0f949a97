"""The kernels of CPUs with vdpbf16ps: products of bfloat16 over panels, layers that decode, prompts' attention."""

import ctypes
from pathlib import Path

import torch
from torch import Tensor

from pdmux_actor.models.compiled.compiled_linear import KernelProjection
from pdmux_actor.models.compiled.kernels import pointer_of
from pdmux_actor.models.compiled.library import PANEL_KERNELS, compiled_library

PANEL_ROWS = 16
AT_ONCE_COLUMNS = 2
_KEYS_AT_ONCE = 64  # of prompt_attention.cpp

_POINTER, _INT = ctypes.c_void_p, ctypes.c_int64


class PanelKernels:
    """Runs on as many threads as torch uses on the calling thread: it shares its OpenMP."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.linear = library.muxfleet_panel_linear
        self.linear.argtypes = (_POINTER, _INT, _INT, _POINTER, _INT, *(_POINTER,) * 3)
        self.linear.restype = None
        self.decode_layers = library.muxfleet_decode_layers
        self.decode_layers.argtypes = (_POINTER, _INT, _INT, *(_POINTER,) * 5)
        self.decode_layers.restype = None
        self._prompt_attention = library.muxfleet_prompt_attention
        self._prompt_attention.argtypes = (
            *(_POINTER, _INT, _POINTER, _POINTER, *(_INT,) * 7),
            *(ctypes.c_float, _INT, _POINTER, _POINTER),
        )
        self._prompt_attention.restype = None

    @classmethod
    def compiled_into(cls, folder: Path) -> "PanelKernels | None":
        """None where there is no compiler, or where oneDNN's products are the faster ones."""
        library = compiled_library(folder, PANEL_KERNELS)
        return None if library is None else cls(library)

    @staticmethod
    def serve(weight: Tensor) -> bool:
        """They are for weights in whole panels, on a CPU."""
        rows, columns = weight.shape
        is_whole = rows % PANEL_ROWS == 0 and columns % AT_ONCE_COLUMNS == 0
        return is_whole and weight.dtype == torch.bfloat16 and weight.device.type == "cpu"

    def attend_prompt(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attended: Tensor,
        *,
        scale: float | None,
        window_tokens: int | None,
    ) -> None:
        """Causal; the queries are those of the last tokens. query: [tokens, heads, head_dim], key, value: [keys,
        kv_heads, head_dim], both with the same strides, `attended`: [tokens, heads * head_dim]. In all numbers of a
        head lie side by side, in query and `attended` also those of a token.
        """
        tokens, heads, head_dim = query.shape
        keys, kv_heads, _ = key.shape
        packed = torch.empty(2 * head_dim * (-(-keys // _KEYS_AT_ONCE) * _KEYS_AT_ONCE), dtype=query.dtype)
        self._prompt_attention(
            *(query.data_ptr(), query.stride(0), key.data_ptr(), value.data_ptr(), key.stride(0), key.stride(1)),
            *(tokens, keys, kv_heads, heads // kv_heads, head_dim),
            *(head_dim**-0.5 if scale is None else scale, window_tokens or 0, packed.data_ptr(), attended.data_ptr()),
        )


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
