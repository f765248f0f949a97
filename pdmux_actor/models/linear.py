"""Matrix products with weights, by oneDNN with the weights in its own layout.

torch.nn.functional.linear hands float32 to MKL, which has no AVX-512 path for AMD's CPUs (2 to 3 times slower there),
and lays bfloat16 weights anew at each call.
"""

import platform
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional

from pdmux_actor.models.quantised_weight import QuantisedWeight

# The batch that oneDNN chooses the layout for. The layout for few rows is slower for many; not the other way round.
_LAYOUT_BATCH = 1024


class Projection(Protocol):
    """x W^T + bias, with x `[tokens, in]` and W `[out, in]`, however W is kept: plain, quantised, with adapters beside
    it, or one rank's part of it.
    """

    @property
    def dtype(self) -> torch.dtype:
        """Inputs and products have it."""
        ...

    @property
    def tensor_bytes(self) -> tuple[int, ...]:
        """Sizes of the tensors that `copied` passes on, in its order."""
        ...

    def copied(self, of_tensor: Callable[[Tensor], Tensor], *, packed: bool) -> "Projection":
        """The same over other tensors; `of_tensor` gets each in its plain layout. Not `packed`: to be kept, not
        multiplied with.
        """
        ...

    def repacked(self) -> "Projection":
        """The same, packed for products on a CPU, of tensors of its own."""
        ...

    def __call__(self, inputs: Tensor) -> Tensor: ...

    def plus(self, inputs: Tensor, addend: Tensor) -> Tensor:
        """The product, and `addend` of its shape added in the same pass; `addend` may be overwritten."""
        ...


@runtime_checkable
class SummedProjection(Projection, Protocol):
    """A rank's part of a projection, whose products are summed over ranks."""

    def plus_changed(self, inputs: Tensor, addend: Tensor, change: Callable[[Tensor], None]) -> Tensor:
        """Returns what `plus` does; `change` adds in place to this rank's part of the sum."""
        ...


@runtime_checkable
class Classifier(Projection, Protocol):
    """A projection to the vocabulary, which may be the embedding, and of which single rows may be read."""

    @property
    def has_plain_rows(self) -> bool:
        """Returns whether single rows of W can be read, and there is no bias."""
        ...

    def rows(self, indices: Tensor) -> Tensor:
        """Rows `indices` of W, in float32. Only where `has_plain_rows`."""
        ...

    def shares(self, tensor: Tensor) -> bool:
        """Its weight is that very tensor: a tied embedding."""
        ...


MakeProjection = Callable[[Tensor | QuantisedWeight, Tensor | None], Projection]
"""Makes a projection of a weight `[out, in]` and a bias, which become its own."""


class Linear:
    """Implements Classifier over a weight of the activations' dtype.

    x W^T + bias, with x `[tokens, in]` and W `[out, in]`.

    `packed` keeps W in oneDNN's layout only; without it W is shared with the caller (a tied embedding), and products
    with few tokens are slower.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, packed: bool = True) -> None:
        self.bias = bias
        self._onednn = weight.device.type == "cpu" and _onednn_multiplies(weight.dtype)
        self._weight: Tensor = (
            torch.ops.mkldnn._reorder_linear_weight(weight, _LAYOUT_BATCH) if self._onednn and packed else weight
        )

    @property
    def weight(self) -> Tensor:
        """`[out, in]`, in the plain layout; a copy where it is packed."""
        return self._weight.to_dense() if self._weight.is_mkldnn else self._weight

    @property
    def dtype(self) -> torch.dtype:
        return self._weight.dtype

    @property
    def has_plain_rows(self) -> bool:
        return not self._weight.is_mkldnn and self.bias is None

    @property
    def is_packed(self) -> bool:
        return self._weight.is_mkldnn

    def rows(self, indices: Tensor) -> Tensor:
        """Rows `indices` of W, in float32. Only where `has_plain_rows`."""
        return self._weight.index_select(0, indices).float()

    @property
    def tensor_bytes(self) -> tuple[int, ...]:
        weight_bytes = self._weight.numel() * self.dtype.itemsize
        return (weight_bytes,) if self.bias is None else (weight_bytes, self.bias.nbytes)

    def copied(self, of_tensor: Callable[[Tensor], Tensor], *, packed: bool) -> "Linear":
        weight = of_tensor(self.weight)
        return Linear(weight, None if self.bias is None else of_tensor(self.bias), packed=packed)

    def repacked(self) -> "Linear":
        """Packs it anew, without a copy on the way: the layout is made from this one's weight."""
        return Linear(self.weight, None if self.bias is None else self.bias.clone())

    def shares(self, tensor: Tensor) -> bool:
        """Its weight is that very tensor: a tied embedding."""
        return self._weight is tensor

    def __call__(self, inputs: Tensor) -> Tensor:
        if not self._onednn:
            return functional.linear(inputs, self._weight, self.bias)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, self._weight, self.bias, "none", [], "")
        return product

    def into(self, inputs: Tensor, product: Tensor) -> None:
        """Writes the product to `product`, where a GPU multiplies."""
        if self._onednn:
            product.copy_(self(inputs))
        elif self.bias is None:
            torch.mm(inputs, self._weight.t(), out=product)
        else:
            torch.addmm(self.bias, inputs, self._weight.t(), out=product)

    @property
    def out_features(self) -> int:
        return self._weight.shape[0]

    def plus(self, inputs: Tensor, addend: Tensor) -> Tensor:
        """The product, and `addend` of its shape added in the same pass; `addend` may be overwritten."""
        if not self._onednn:
            # In place it is one launch on a GPU; otherwise the addend is copied first.
            total = addend.addmm_(inputs, self._weight.t())
            return total if self.bias is None else total.add_(self.bias)
        fused: Tensor = torch.ops.mkldnn._linear_pointwise.binary(inputs, addend, self._weight, self.bias, "add")
        return fused


def plain_projection(weight: Tensor | QuantisedWeight, bias: Tensor | None) -> Projection:
    assert isinstance(weight, Tensor), "levels are for projections that are kept quantised"
    return Linear(weight, bias)


def _onednn_multiplies(dtype: torch.dtype) -> bool:
    """What torch's own compiler asks before it uses the same operators."""
    built_in = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch has no types here
    if platform.machine() not in ("x86_64", "AMD64") or not built_in:
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return dtype == torch.float32
