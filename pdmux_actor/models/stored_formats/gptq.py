"""Unpacks GPTQ: 4 or 8 bits with a scale and a zero for each group of columns.

`qweight` int32 [in * bits / 32, out] holds levels along the columns of W; `qzeros` int32 [groups, out * bits / 32]
zeros, which are one less than meant unless `checkpoint_format` is gptq_v2; `scales` [groups, out]; `g_idx` [in] the
group of each column, out of order with `desc_act`.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pdmux_actor.models.stored_formats.entry import StoredFormat, Tensors
from pdmux_actor.models.stored_levels import StoredLevels, unpacked
from profiler.errors import UnsupportedModel

_BITS = (4, 8)
_LAYOUTS = ("gptq", "gptq_v2")


def _check(settings: Mapping[str, Any]) -> None:
    if settings.get("bits") not in _BITS:
        raise UnsupportedModel(field="bits", value=str(settings.get("bits")), remedy="use a checkpoint of 4 or 8 bits")
    layout = settings.get("checkpoint_format", "gptq")
    if layout not in _LAYOUTS:
        raise UnsupportedModel(field="checkpoint_format", value=str(layout), remedy="save it as gptq or gptq_v2")


def _unpack(tensors: Tensors, settings: Mapping[str, Any]) -> StoredLevels:
    bits = int(settings["bits"])
    levels = unpacked(tensors["qweight"], bits, 0).t().contiguous()
    scale = tensors["scales"].t().contiguous()
    zero = unpacked(tensors["qzeros"], bits, 1).t().contiguous()
    if zero.shape != scale.shape:
        raise ValueError(f"zeros {list(zero.shape)} are not of the shape of scales, {list(scale.shape)}")
    if settings.get("checkpoint_format", "gptq") == "gptq":
        zero = (zero + 1).bitwise_and_((1 << bits) - 1)  # a zero of 0 was stored as the largest
    width = levels.shape[1]
    group = int(settings.get("group_size", -1))
    return StoredLevels(
        levels=levels,
        scale=scale,
        zero=zero,
        group=group if group > 0 else width,
        groups=_out_of_order(tensors.get("g_idx"), group if group > 0 else width),
    )


def _out_of_order(groups: Tensor | None, group: int) -> Tensor | None:
    if groups is None or torch.equal(groups.long(), torch.arange(len(groups)) // group):
        return None
    return groups.long()


FORMAT = StoredFormat(
    name="gptq",
    markers=frozenset({"qweight"}),
    tensors=("qweight", "qzeros", "scales", "g_idx"),
    check=_check,
    unpack=_unpack,
)
