"""Unpacks the 4-bit blocks of GGUF files whose levels the engine's own kernels multiply with."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from pdmux_actor.models.quantised_weight import INT4_MIDDLE

GROUP = 32
"""Columns that share a scale and a middle, in each of these types."""

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Unpacked = tuple[Bytes, Floats, Floats]
"""Levels [blocks, columns of a block], and scale and value of level 8 of each group, [blocks, groups of a block]."""


def _halves(blocks: Bytes, first: int) -> Floats:
    return blocks[:, first : first + 2].copy().view(np.float16).astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """[.., bytes] to [.., 2 * bytes]: the low ones of all, then the high ones."""
    return np.concatenate((packed & 0xF, packed >> 4), axis=-1)


def _q4_0(blocks: Bytes) -> Unpacked:
    scale = _halves(blocks, 0)
    return _nibbles(blocks[:, 2:]), scale, np.zeros_like(scale)


def _q4_1(blocks: Bytes) -> Unpacked:
    scale = _halves(blocks, 0)
    return _nibbles(blocks[:, 4:]), scale, INT4_MIDDLE * scale + _halves(blocks, 2)


def _q4_k(blocks: Bytes) -> Unpacked:
    """256 columns: eight groups, their scales and least values of six bits each, to be multiplied by one of each."""
    packed = blocks[:, 4:16]
    low, high = packed[:, :8], packed[:, 8:]
    upper = low >> 6 << 4
    scales = np.concatenate((low[:, :4] & 63, (high & 0xF) | upper[:, :4]), axis=1)
    least = np.concatenate((low[:, 4:] & 63, (high >> 4) | upper[:, 4:]), axis=1)
    scale = _halves(blocks, 0) * scales.astype(np.float32)
    middle = INT4_MIDDLE * scale - _halves(blocks, 2) * least.astype(np.float32)
    levels = _nibbles(blocks[:, 16:].reshape(len(blocks), -1, GROUP))
    return levels.reshape(len(blocks), -1), scale, middle


UNPACKERS: Mapping[str, Callable[[Bytes], Unpacked]] = MappingProxyType({"Q4_0": _q4_0, "Q4_1": _q4_1, "Q4_K": _q4_k})
