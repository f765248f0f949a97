"""The weights of a product as a quantised checkpoint holds them, whatever its layout: levels, scales and zeros."""

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from pdmux_actor.models.quantised_weight import INT4_MIDDLE, QuantisedWeight
from profiler.weight_formats import INT4_GROUPS, MXFP4, int4_group

_ROWS_AT_ONCE_BYTES = 4 << 20  # of what is computed beside the result
_INT4_LEVELS = 15


class StoredProduct(Protocol):
    """The weight of a product `[out, in]`, or a part of it, however a checkpoint keeps it."""

    @property
    def shape(self) -> list[int]: ...

    def rows(self, first: int, last: int) -> "StoredProduct": ...

    def columns(self, first: int, last: int) -> "StoredProduct": ...

    def write_dense(self, target: Tensor) -> None:
        """W, rounded once to the dtype of `target`, some rows at a time."""
        ...

    def kept_as(self, weights: str | None, dtype: torch.dtype) -> QuantisedWeight | None:
        """The very levels, scales rounded to `dtype`; None: the engine has no kernel for their layout."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLevels:
    """Implements StoredProduct: W `[out, in]` = (levels - zero) * scale, with a scale, and a zero if any is not 0, for
    each row and group of columns, `[out, groups]`. Levels are of one byte each, integers or float8. Groups are of
    `group` columns each, the last of fewer; or `groups` says of each column which is its.
    """

    levels: Tensor
    scale: Tensor
    zero: Tensor | None
    group: int
    groups: Tensor | None = None

    @property
    def shape(self) -> list[int]:
        return list(self.levels.shape)

    def rows(self, first: int, last: int) -> "StoredLevels":
        zero = None if self.zero is None else self.zero[first:last]
        return replace(self, levels=self.levels[first:last], scale=self.scale[first:last], zero=zero)

    def columns(self, first: int, last: int) -> "StoredLevels":
        levels = self.levels[:, first:last].contiguous()
        if self.groups is not None or first % self.group or (last - first) % self.group:
            return replace(self, levels=levels, groups=self._group_of_columns()[first:last])
        of = slice(first // self.group, last // self.group)
        zero = None if self.zero is None else self.zero[:, of]
        return replace(self, levels=levels, scale=self.scale[:, of], zero=zero)

    def write_dense(self, target: Tensor) -> None:
        columns = self._group_of_columns().to(self.levels.device)
        rows_at_once = max(1, _ROWS_AT_ONCE_BYTES // (4 * self.levels.shape[1]))
        for first in range(0, len(self.levels), rows_at_once):
            part = self.rows(first, first + rows_at_once)
            exact = part.levels.float()
            if part.zero is not None:
                exact -= part.zero.float()[:, columns]
            target[first : first + rows_at_once] = exact.mul_(part.scale.float()[:, columns])

    def kept_as(self, weights: str | None, dtype: torch.dtype) -> QuantisedWeight | None:
        if self.groups is not None or self.levels.is_floating_point():
            return None
        if weights == "int8":
            return self._as_int8(dtype)
        if weights == MXFP4:
            return QuantisedWeight(levels=self.levels, scale=self.scale.to(dtype))
        return self._as_int4(dtype) if weights is not None and weights.startswith("int4") else None

    def _as_int8(self, dtype: torch.dtype) -> QuantisedWeight | None:
        if self.scale.shape[1] != 1 or self.zero is not None or self.levels.dtype != torch.int8:
            return None
        return QuantisedWeight(levels=self.levels, scale=self.scale[:, 0].to(dtype))

    def _as_int4(self, dtype: torch.dtype) -> QuantisedWeight | None:
        rows, columns = self.levels.shape
        group = next((size for size in INT4_GROUPS if self.group % size == 0 and columns % size == 0), None)
        if group is None or self.levels.dtype != torch.uint8 or int4_group(rows, columns) is None:
            return None
        if self.levels.amax() > _INT4_LEVELS:
            return None
        of_group = torch.arange(0, columns, group) // self.group
        scale = self.scale.float()[:, of_group]
        zero = 0.0 if self.zero is None else self.zero.float()[:, of_group]
        middle = (INT4_MIDDLE - zero) * scale
        return QuantisedWeight(levels=self.levels, scale=scale.to(dtype), middle=middle.to(dtype))

    def _group_of_columns(self) -> Tensor:
        return torch.arange(self.levels.shape[1]) // self.group if self.groups is None else self.groups


def unpacked(words: Tensor, bits: int, dim: int, order: tuple[int, ...] | None = None) -> Tensor:
    """Levels from 0, uint8, of int32 `words` that hold 32 / bits of them each along `dim`, the first in the lowest bits
    or in those that `order` says.
    """
    per_word = 32 // bits
    places = order or tuple(range(per_word))
    parts = [(words >> (bits * place)).bitwise_and_((1 << bits) - 1).to(torch.uint8) for place in places]
    return torch.stack(parts, dim + 1).flatten(dim, dim + 1)
