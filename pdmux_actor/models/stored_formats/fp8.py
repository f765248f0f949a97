"""Unpacks float8 weights with a scale for each block, as DeepSeek and Qwen publish them, or one for a whole tensor.

`weight` is float8_e4m3fn [out, in]; `weight_scale_inv`, by which it is multiplied in spite of its name, has a number
for each block of `weight_block_size` (128 x 128), or is one number, which AutoFP8 calls `weight_scale`. Embedding,
classifier and norms are plain.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pdmux_actor.models.stored_formats.entry import StoredFormat, Tensors
from pdmux_actor.models.stored_levels import StoredLevels
from profiler.errors import UnsupportedModel

_STANDARD_BLOCK = (128, 128)
_SCALES = ("weight_scale_inv", "weight_scale")


def _check(settings: Mapping[str, Any]) -> None:
    block = settings.get("weight_block_size")
    is_pair = isinstance(block, list | tuple) and len(block) == 2 and all(isinstance(n, int) and n > 0 for n in block)
    if block is not None and not is_pair:
        raise UnsupportedModel(field="weight_block_size", value=str(block), remedy="give rows and columns of a block")


def _unpack(tensors: Tensors, settings: Mapping[str, Any]) -> StoredLevels:
    rows, columns = settings.get("weight_block_size") or _STANDARD_BLOCK
    scale = next(tensors[name] for name in _SCALES if name in tensors)
    return scaled_blocks(tensors["weight"], scale, rows, columns)


def scaled_blocks(levels: Tensor, scale: Tensor, rows: int, columns: int) -> StoredLevels:
    """Takes `levels` [out, in] with a scale for each block of `rows` and `columns`, or with one.

    Raises:
        ValueError: there are more or fewer.
    """
    out, width = levels.shape
    if scale.numel() == 1:
        return StoredLevels(levels=levels, scale=scale.reshape(1, 1).expand(out, 1), zero=None, group=width)
    blocks = [-(-out // rows), -(-width // columns)]
    if list(scale.shape) != blocks:
        raise ValueError(f"has shape {list(scale.shape)}, blocks of {rows} x {columns} make it {blocks}")
    return StoredLevels(
        levels=levels, scale=scale.float().repeat_interleave(rows, dim=0)[:out], zero=None, group=columns
    )


FORMAT = StoredFormat(
    name="fp8",
    markers=frozenset(_SCALES),
    tensors=(*_SCALES, "weight"),
    check=_check,
    unpack=_unpack,
)
