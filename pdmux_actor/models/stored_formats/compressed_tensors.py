"""Unpacks what llm-compressor writes: integers of 4 and 8 bits, float8, with scales by row, group, block or tensor.

Packed (`weight_packed` int32 [out, in * bits / 32], levels along a row, `weight_shape`, and `weight_zero_point` packed
along the other dimension) or one number a byte (`weight`, int8 or float8). `weight_scale` is [out, groups], or has a
number for each block, or for all.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from pdmux_actor.models.stored_formats.entry import StoredFormat, Tensors
from pdmux_actor.models.stored_formats.fp8 import scaled_blocks
from pdmux_actor.models.stored_levels import StoredLevels, unpacked
from profiler.errors import UnsupportedModel

_LAYOUTS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision", "dense")
_BITS = (4, 8)
_STANDARD_BLOCK = (128, 128)


def _check(settings: Mapping[str, Any]) -> None:
    layout = settings.get("format", "dense")
    if layout not in _LAYOUTS:
        raise UnsupportedModel(field="format", value=str(layout), remedy=f"use one of {', '.join(_LAYOUTS)}")
    for field in ("sparsity_config", "transform_config"):
        given = settings.get(field)
        if isinstance(given, Mapping) and (given.get("format", "dense") != "dense" or given.get("config_groups")):
            raise UnsupportedModel(field=field, value=str(given), remedy="use a checkpoint that is quantised only")
    for group in _groups(settings):
        if group.get("num_bits") not in _BITS:
            raise UnsupportedModel(
                field="config_groups.weights.num_bits",
                value=str(group.get("num_bits")),
                remedy="use a checkpoint of 4 or 8 bits",
            )


def _groups(settings: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    groups = settings.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(weights, Mapping):
            yield weights


def _unpack(tensors: Tensors, settings: Mapping[str, Any]) -> StoredLevels:
    scale = tensors["weight_scale"]
    if "weight_packed" in tensors:
        return _of_words(tensors, scale)
    levels = tensors["weight"]
    if scale.numel() == 1 or len(scale) != len(levels):
        blocks = (group.get("block_structure") for group in _groups(settings))
        rows, columns = next((block for block in blocks if block), _STANDARD_BLOCK)
        return scaled_blocks(levels, scale, int(rows), int(columns))
    zero = tensors.get("weight_zero_point")
    return _grouped(levels, scale, zero if zero is not None and torch.any(zero) else None, tensors.get("weight_g_idx"))


def _of_words(tensors: Tensors, scale: Tensor) -> StoredLevels:
    words, (rows, columns) = tensors["weight_packed"], tensors["weight_shape"].tolist()
    bits = next((bits for bits in _BITS if -(-columns * bits // 32) == words.shape[1]), None)
    if bits is None or rows != len(words):
        raise ValueError(f"has shape {list(words.shape)}, which holds no {rows} x {columns} levels of 4 or 8 bits")
    levels = unpacked(words, bits, 1)[:, :columns]
    packed_zero = tensors.get("weight_zero_point")
    if packed_zero is not None:
        zero = unpacked(packed_zero, bits, 0)[:rows]
    elif bits == _BITS[-1]:  # around zero, as int8
        return _grouped(levels.bitwise_xor_(1 << 7).view(torch.int8), scale, None, tensors.get("weight_g_idx"))
    else:
        zero = torch.full(scale.shape, 1 << (bits - 1), dtype=torch.uint8)
    return _grouped(levels.contiguous(), scale, zero, tensors.get("weight_g_idx"))


def _grouped(levels: Tensor, scale: Tensor, zero: Tensor | None, groups: Tensor | None) -> StoredLevels:
    if len(scale) != len(levels) or levels.shape[1] % scale.shape[1]:
        raise ValueError(f"{list(scale.shape)} scales do not go with {list(levels.shape)} levels")
    group = levels.shape[1] // scale.shape[1]
    return StoredLevels(
        levels=levels, scale=scale, zero=zero, group=group, groups=None if groups is None else groups.long()
    )


FORMAT = StoredFormat(
    name="compressed-tensors",
    markers=frozenset({"weight_packed", "weight_scale"}),
    tensors=("weight_packed", "weight", "weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx"),
    check=_check,
    unpack=_unpack,
)
