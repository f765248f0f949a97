"""A matrix product with weights in MXFP4, in which the experts of gpt-oss are published: they are kept as they are."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from pdmux_actor.models.compiled.kernels import CpuKernels
from pdmux_actor.models.quantised_weight import QuantisedWeight

# By the code of a float of 4 bits: a sign, two bits of exponent, one of mantissa.
_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
_SIGN = 8
_MOST_DOUBLED = 12
_EXPONENT_BIAS = 127
_GROUP = 32
_MOST_TOKENS = 16  # of more, unpacking W is little beside the product


class Mxfp4Linear:
    """Implements Projection, exactly: products of W's own values, which all dtypes but float16 have.

    `blocks` [out, in / 2] has two floats in a byte, the first one's code in its lower bits; `exponents` [out, in / 32]
    are those of the powers of two of 32 columns each, 127 more than they are.
    """

    def __init__(
        self,
        blocks: Tensor,
        exponents: Tensor,
        dtype: torch.dtype,
        bias: Tensor | None = None,
        kernels: CpuKernels | None = None,
    ) -> None:
        self.bias = bias
        self._blocks = blocks
        self._exponents = exponents
        self._dtype = dtype
        self._kernels = kernels if dtype == torch.bfloat16 and blocks.device.type == "cpu" else None

    @classmethod
    def of(
        cls, weight: QuantisedWeight, bias: Tensor | None = None, kernels: CpuKernels | None = None
    ) -> "Mxfp4Linear":
        codes = torch.zeros(2 * _MOST_DOUBLED + 1, dtype=torch.uint8)
        for code, value in enumerate(_VALUES):
            if code != _SIGN:  # zero has one code
                codes[int(2 * value) + _MOST_DOUBLED] = code
        of_levels = codes[(weight.levels + _MOST_DOUBLED).int()]
        blocks = of_levels[:, ::2] | (of_levels[:, 1::2] << 4)
        exponents = torch.log2(weight.scale.float()).round_() + 1  # levels are doubled
        biased = exponents.add_(_EXPONENT_BIAS).clamp_(0, 2 * _EXPONENT_BIAS)
        return cls(blocks, biased.to(torch.uint8), weight.scale.dtype, bias, kernels)

    @property
    def weight(self) -> Tensor:
        """W, a copy."""
        if self._kernels is not None:
            return self._kernels.mxfp4_unpacked(self._blocks, self._exponents)
        values = torch.tensor(_VALUES, device=self._blocks.device)
        pairs = torch.stack((self._blocks & 15, self._blocks >> 4), dim=-1)
        grouped = values[pairs.flatten(1).int()].view(*self._exponents.shape, _GROUP)
        scale = torch.exp2(self._exponents.float() - _EXPONENT_BIAS)
        return (grouped * scale[..., None]).flatten(1).to(self._dtype)

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    @property
    def tensor_bytes(self) -> tuple[int, ...]:
        sizes = (self._blocks.nbytes, self._exponents.nbytes)
        return sizes if self.bias is None else (*sizes, self.bias.nbytes)

    def copied(self, of_tensor: Callable[[Tensor], Tensor], *, packed: bool) -> "Mxfp4Linear":
        """`packed` or not, the layout is the same."""
        blocks, exponents = of_tensor(self._blocks), of_tensor(self._exponents)
        bias = None if self.bias is None else of_tensor(self.bias)
        return Mxfp4Linear(blocks, exponents, self._dtype, bias, self._kernels)

    def repacked(self) -> "Mxfp4Linear":
        return self.copied(torch.clone, packed=True)

    def __call__(self, inputs: Tensor) -> Tensor:
        if self._kernels is not None and inputs.shape[0] <= _MOST_TOKENS:
            return self._kernels.mxfp4_linear(inputs, self._blocks, self._exponents, self.bias)
        return functional.linear(inputs, self.weight, self.bias)

    def plus(self, inputs: Tensor, addend: Tensor) -> Tensor:
        return addend.add_(self(inputs))
