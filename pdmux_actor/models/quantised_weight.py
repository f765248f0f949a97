"""Weights rounded to 8 or 4 bits, by themselves: what they stand for, and how they come of others."""

from dataclasses import dataclass

import torch
from torch import Tensor

from profiler.weight_formats import INT4_GROUP

INT4_MIDDLE = 8
_INT8_MAX = 127
_INT4_LEVELS = 15
_GROUPS = (INT4_GROUP, 64, 32)
_INT4_ROWS = 32  # kernels take so many rows together


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedWeight:
    """Holds W `[out, in]` as levels. Of 8 bits: int8 with a scale for each row, `[out]`; W = levels * scale. Of 4 bits:
    uint8 from 0 to 15 with `scale` and `middle`, the value of level 8, for each group of columns, `[out, groups]`;
    W = (levels - 8) * scale + middle.
    """

    levels: Tensor
    scale: Tensor
    middle: Tensor | None = None

    def dense(self) -> Tensor:
        """W in the dtype of `scale`, rounded once."""
        rows, columns = self.levels.shape
        if self.middle is None:
            return (self.levels.float() * self.scale.float()[:, None]).to(self.scale.dtype)
        grouped = self.levels.view(rows, self.scale.shape[1], -1).float() - INT4_MIDDLE
        weight = grouped * self.scale.float()[..., None] + self.middle.float()[..., None]
        return weight.view(rows, columns).to(self.scale.dtype)


def rounded_to_int8(weight: Tensor) -> QuantisedWeight:
    """Takes the nearest of 255 levels around zero, row by row."""
    exact = weight.float()
    scale = _step(exact.abs().amax(dim=1) / _INT8_MAX, weight.dtype)
    levels = (exact / scale.float()[:, None]).round_().clamp_(-_INT8_MAX, _INT8_MAX)
    return QuantisedWeight(levels=levels.to(torch.int8), scale=scale)


def rounded_to_int4(weight: Tensor) -> QuantisedWeight | None:
    """Takes the nearest of 16 levels from the least to the largest weight of a group; None: no kernel has its shape."""
    rows, columns = weight.shape
    group = next((group for group in _GROUPS if columns % group == 0), None)
    if group is None or rows % _INT4_ROWS:
        return None
    grouped = weight.float().view(rows, columns // group, group)
    least, largest = grouped.amin(dim=2), grouped.amax(dim=2)
    scale = _step((largest - least) / _INT4_LEVELS, weight.dtype)
    middle = (least + INT4_MIDDLE * scale.float()).to(weight.dtype)
    levels = ((grouped - middle.float()[..., None]) / scale.float()[..., None] + INT4_MIDDLE).round_()
    levels = levels.clamp_(0, _INT4_LEVELS).to(torch.uint8).view(rows, columns)
    return QuantisedWeight(levels=levels, scale=scale, middle=middle)


def _step(size: Tensor, dtype: torch.dtype) -> Tensor:
    """Between two levels; where all weights are the same, any will do."""
    step = size.to(dtype)
    return torch.where(step > 0, step, torch.ones_like(step))
