"""Weights rounded to 8 or 4 bits, by themselves: what they stand for, and how they come of others."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from profiler.weight_formats import int4_group

INT4_MIDDLE = 8
_INT8_MAX = 127
_INT4_LEVELS = 15
_AT_ONCE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedWeight:
    """Holds W `[out, in]` as levels. Of 8 bits: int8 with a scale for each row, `[out]`; W = levels * scale. Of 4 bits:
    uint8 from 0 to 15 with `scale` and `middle`, the value of level 8, for each group of columns, `[out, groups]`;
    W = (levels - 8) * scale + middle. Of MXFP4: int8, twice the values, with a `scale` for each 32 columns,
    `[out, groups]`; W = levels * scale.
    """

    levels: Tensor
    scale: Tensor
    middle: Tensor | None = None

    def dense(self) -> Tensor:
        """W in the dtype of `scale`, rounded once."""
        rows, columns = self.levels.shape
        scale = self.scale.float().view(rows, -1, 1)
        grouped = self.levels.view(rows, scale.shape[1], -1).float()
        if self.middle is None:
            weight = grouped * scale
        else:
            weight = (grouped - INT4_MIDDLE) * scale + self.middle.float()[..., None]
        return weight.view(rows, columns).to(self.scale.dtype)

    def columns(self, first: int, last: int) -> "QuantisedWeight | None":
        """The very levels of some columns; None: they begin or end within a group."""
        if self.scale.dim() == 1:
            return QuantisedWeight(levels=self.levels[:, first:last].contiguous(), scale=self.scale)
        group = self.levels.shape[1] // self.scale.shape[1]
        if first % group or last % group:
            return None
        of = slice(first // group, last // group)
        levels, scale = self.levels[:, first:last].contiguous(), self.scale[:, of].contiguous()
        middle = None if self.middle is None else self.middle[:, of].contiguous()
        return QuantisedWeight(levels=levels, scale=scale, middle=middle)

    def placed(self, place: Callable[[Tensor], Tensor]) -> "QuantisedWeight":
        middle = None if self.middle is None else place(self.middle)
        return QuantisedWeight(levels=place(self.levels), scale=place(self.scale), middle=middle)


def rounded_to(weights: str, weight: Tensor) -> QuantisedWeight:
    """`weights` is ModelSpec's; what no 4-bit kernel takes gets 8."""
    rounded = rounded_to_int4(weight) if weights.startswith("int4") else None
    return rounded_to_int8(weight) if rounded is None else rounded


def rounded_to_int8(weight: Tensor) -> QuantisedWeight:
    """Takes the nearest of 255 levels around zero, row by row."""
    levels = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    scale = torch.empty(len(weight), dtype=weight.dtype, device=weight.device)
    for rows in _rows_at_once(weight):
        exact = weight[rows].float()
        scale[rows] = _step(exact.abs().amax(dim=1) / _INT8_MAX, weight.dtype)
        levels[rows] = exact.div(scale[rows].float()[:, None]).round_().clamp_(-_INT8_MAX, _INT8_MAX)
    return QuantisedWeight(levels=levels, scale=scale)


def rounded_to_int4(weight: Tensor) -> QuantisedWeight | None:
    """Takes the nearest of 16 levels from the least to the largest weight of a group; None: no kernel has its shape."""
    rows, columns = weight.shape
    group = int4_group(rows, columns)
    if group is None:
        return None
    levels = torch.empty(weight.shape, dtype=torch.uint8, device=weight.device)
    scale = torch.empty((rows, columns // group), dtype=weight.dtype, device=weight.device)
    middle = torch.empty_like(scale)
    for part in _rows_at_once(weight):
        grouped = weight[part].float().view(-1, columns // group, group)
        least, largest = grouped.amin(dim=2), grouped.amax(dim=2)
        scale[part] = step = _step((largest - least) / _INT4_LEVELS, weight.dtype)
        middle[part] = (least + INT4_MIDDLE * step.float()).to(weight.dtype)
        nearest = (grouped - middle[part].float()[..., None]) / step.float()[..., None] + INT4_MIDDLE
        levels[part] = nearest.round_().clamp_(0, _INT4_LEVELS).view(-1, columns)
    return QuantisedWeight(levels=levels, scale=scale, middle=middle)


def stacked(parts: Sequence[QuantisedWeight]) -> QuantisedWeight:
    """Weights of as many columns and groups on top of each other."""
    middles = [part.middle for part in parts if part.middle is not None]
    return QuantisedWeight(
        levels=torch.cat([part.levels for part in parts]),
        scale=torch.cat([part.scale for part in parts]),
        middle=torch.cat(middles) if middles else None,
    )


def _rows_at_once(weight: Tensor) -> Iterator[slice]:
    """Parts that are rounded one by one, so that little is held in float32."""
    count = max(1, _AT_ONCE_BYTES // (4 * weight.shape[1]))
    for first in range(0, len(weight), count):
        yield slice(first, first + count)


def _step(size: Tensor, dtype: torch.dtype) -> Tensor:
    """Between two levels; where all weights are the same, any will do."""
    step = size.to(dtype)
    return torch.where(step > 0, step, torch.ones_like(step))
