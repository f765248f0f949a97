"""Unpacks MXFP4, in which the experts of gpt-oss are published: 4-bit floats, and a power of two for 32 columns each.

`blocks` [out, groups, 16] are bytes of two floats each, the first in the lower bits; `scales` [out, groups] are the
exponents, 127 more than they are.
"""

from collections.abc import Mapping
from typing import Any

import torch

from pdmux_actor.models.stored_formats.entry import StoredFormat, Tensors
from pdmux_actor.models.stored_levels import StoredLevels

_GROUP = 32
_EXPONENT_BIAS = 127
# Twice the values of e2m1, which are then integers: a sign, two bits of exponent, one of mantissa.
_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def _check(settings: Mapping[str, Any]) -> None:
    """Its other settings name what is plain, which the tensors' names say too."""


def _unpack(tensors: Tensors, settings: Mapping[str, Any]) -> StoredLevels:
    blocks, scales = tensors["blocks"], tensors["scales"]
    if blocks.dtype != torch.uint8 or blocks.shape != (*scales.shape, _GROUP // 2):
        raise ValueError(f"has shape {list(blocks.shape)}, its scales make it {[*scales.shape, _GROUP // 2]} bytes")
    values = torch.tensor(_DOUBLED, dtype=torch.int8)
    pairs = torch.stack((blocks & 15, blocks >> 4), dim=-1)
    levels = values[pairs.flatten(1).int()]
    scale = torch.exp2(scales.double() - _EXPONENT_BIAS - 1).float()  # less by one: levels are doubled
    return StoredLevels(levels=levels, scale=scale, zero=None, group=_GROUP)


FORMAT = StoredFormat(
    name="mxfp4",
    markers=frozenset(),
    tensors=("blocks", "scales"),
    check=_check,
    unpack=_unpack,
    of_stacks=True,
)
