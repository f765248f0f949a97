"""The tensors of a GGUF file under the names of Hugging Face's layout."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pdmux_actor.models.gguf_files.layout_folder import WEIGHTS_FILE
from pdmux_actor.models.gguf_files.opened_file import GgufFile, open_gguf
from pdmux_actor.models.gguf_files.tensor_names import TensorSource, tensor_sources
from pdmux_actor.models.quantised_weight import INT4_MIDDLE, QuantisedWeight
from profiler.families.entry import MixtureTraits
from profiler.weight_formats import int4_group

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


_AT_ONCE_BYTES = 4 << 20  # of what is computed beside the result


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """Implements StoredProduct. `offset` is that of its first row, `columns` those of `width` that are meant. Rows of
    a head come in turns where `head_rows` are those of one head.
    """

    path: Path
    type_name: str
    offset: int
    num_rows: int
    width: int
    row_bytes: int
    kept_columns: tuple[int, int]
    head_rows: int = 1
    is_vector: bool = False

    @classmethod
    def of(cls, file: GgufFile, source: TensorSource, head_dim: int) -> "GgufTensor":
        place = file.tensors[source.tensor]
        shape, offset, num_bytes = place.shape, place.offset, place.num_bytes
        if source.expert is not None:
            num_bytes //= shape[0]
            offset, shape = offset + source.expert * num_bytes, shape[1:]
        rows, width = (shape[0], 1) if len(shape) == 1 else (shape[0], shape[-1])
        return cls(
            path=place.path,
            type_name=place.type_name,
            offset=offset,
            num_rows=rows,
            width=width,
            row_bytes=num_bytes // rows,
            kept_columns=(0, width),
            head_rows=head_dim if source.interleaved else 1,
            is_vector=len(shape) == 1,
        )

    @property
    def shape(self) -> list[int]:
        first, last = self.kept_columns
        return [self.num_rows] if self.is_vector else [self.num_rows, last - first]

    @property
    def num_bytes(self) -> int:
        return self.num_rows * self.row_bytes

    def rows(self, first: int, last: int) -> "GgufTensor":
        assert first % self.head_rows == 0, "heads are not divided"
        return replace(self, offset=self.offset + first * self.row_bytes, num_rows=last - first)

    def columns(self, first: int, last: int) -> "GgufTensor":
        return replace(self, kept_columns=(self.kept_columns[0] + first, self.kept_columns[0] + last))

    def write_dense(self, target: Tensor) -> None:
        """W, rounded once to the dtype of `target`, some rows at a time."""
        from gguf import GGMLQuantizationType, dequantize

        kind = GGMLQuantizationType[self.type_name]
        columns = slice(*self.kept_columns)
        matrix = target.view(self.num_rows, -1)
        for first, rows in self._rows_at_once():
            values = np.ascontiguousarray(dequantize(rows, kind)[:, columns])
            matrix[first : first + len(rows)] = torch.from_numpy(values)

    def kept_as(self, weights: str | None, dtype: torch.dtype) -> QuantisedWeight | None:
        """The very levels, scales rounded to `dtype`; None: the engine keeps them otherwise."""
        first, last = self.kept_columns
        if weights != f"int4_group{GROUP}" or self.type_name not in UNPACKERS or first % GROUP or last % GROUP:
            return None
        if int4_group(self.num_rows, last - first) is None:
            return None
        levels = torch.empty((self.num_rows, last - first), dtype=torch.uint8)
        scale = torch.empty((self.num_rows, (last - first) // GROUP), dtype=dtype)
        middle = torch.empty_like(scale)
        blocks = self.width // GROUP  # of a row, or more: those of 256 columns have eight groups
        for start, rows in self._rows_at_once():
            unpacked = UNPACKERS[self.type_name](rows.reshape(-1, self._block_bytes))
            part, scales, middles = (torch.from_numpy(array.reshape(len(rows), -1)) for array in unpacked)
            end, groups = start + len(rows), slice(first // GROUP, last // GROUP)
            assert scales.shape[1] == blocks
            levels[start:end] = part[:, first:last]
            scale[start:end], middle[start:end] = scales[:, groups], middles[:, groups]
        return QuantisedWeight(levels=levels, scale=scale, middle=middle)

    @property
    def _block_bytes(self) -> int:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        return int(GGML_QUANT_SIZES[GGMLQuantizationType[self.type_name]][1])

    def _rows_at_once(self) -> Iterator[tuple[int, Bytes]]:
        """Bytes [rows, bytes of a row] in the order of Hugging Face's layout, and which row is the first.

        They are read, not mapped: pages of a mapped file would count as memory of this process.
        """
        heads = max(1, _AT_ONCE_BYTES // (4 * self.width * self.head_rows))
        at_once = heads * self.head_rows
        for first in range(0, self.num_rows, at_once):
            count = min(at_once, self.num_rows - first)
            read = np.fromfile(
                self.path, np.uint8, count * self.row_bytes, offset=self.offset + first * self.row_bytes
            ).reshape(count, self.row_bytes)
            yield first, _by_halves(read, self.head_rows)


def _by_halves(rows: Bytes, head_rows: int) -> Bytes:
    if head_rows == 1:
        return rows
    pairs = rows.reshape(-1, head_rows // 2, 2, rows.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensors:
    file: GgufFile
    sources: Mapping[str, TensorSource]
    head_dim: int

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.sources)

    @property
    def num_bytes(self) -> int:
        return sum(place.num_bytes for place in self.file.tensors.values())

    def tensor(self, name: str) -> GgufTensor:
        return GgufTensor.of(self.file, self.sources[name], self.head_dim)


def gguf_tensors(model: str, folder: Path, head_dim: int, mixture: MixtureTraits | None) -> GgufTensors:
    """Opens the file of a folder that `layout_folder` made. Raises ModelLoadError: the file is missing or broken."""
    file = open_gguf(model, (folder / WEIGHTS_FILE).readlink())
    return GgufTensors(file=file, sources=tensor_sources(file, mixture), head_dim=head_dim)
