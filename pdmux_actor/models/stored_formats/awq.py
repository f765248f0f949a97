"""Unpacks AWQ: 4 bits with a scale and a zero for each group of columns, in the layout of its GEMM kernel.

`qweight` int32 [in, out / 8] holds levels along the rows of W, in the order of the kernel's registers; so does `qzeros`
int32 [groups, out / 8]; `scales` [groups, out].
"""

from collections.abc import Mapping
from typing import Any

from pdmux_actor.models.stored_formats.entry import StoredFormat, Tensors
from pdmux_actor.models.stored_levels import StoredLevels, unpacked
from profiler.errors import UnsupportedModel

_BITS = 4
_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # where the levels of eight rows lie in a word


def _check(settings: Mapping[str, Any]) -> None:
    if settings.get("bits") != _BITS:
        raise UnsupportedModel(field="bits", value=str(settings.get("bits")), remedy="use a checkpoint of 4 bits")
    layout = settings.get("version", settings.get("format", "gemm"))
    if str(layout).lower() != "gemm":
        raise UnsupportedModel(field="version", value=str(layout), remedy="use a checkpoint of version gemm")


def _unpack(tensors: Tensors, settings: Mapping[str, Any]) -> StoredLevels:
    levels = unpacked(tensors["qweight"], _BITS, 1, _ORDER).t().contiguous()
    zeros = tensors.get("qzeros")
    group = int(settings.get("group_size", -1))
    return StoredLevels(
        levels=levels,
        scale=tensors["scales"].t().contiguous(),
        zero=None if zeros is None else unpacked(zeros, _BITS, 1, _ORDER).t().contiguous(),
        group=group if group > 0 else levels.shape[1],
    )


FORMAT = StoredFormat(
    name="awq",
    markers=frozenset({"qweight"}),
    tensors=("qweight", "qzeros", "scales"),
    check=_check,
    unpack=_unpack,
)
