"""Opens a GGUF file: what it says of itself, and where its tensors lie."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.models.gguf_files.file_parts import parts_of

_ARRAY, _LENGTH = struct.Struct("<IQ"), struct.Struct("<Q")
_MOST_NUMBERS = 1024  # of a list that is no vocabulary's
_COPY_AGAIN = "copy or download the file again"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPlace:
    """`shape` in torch's order; the bytes of a row of blocks are together, from `offset` of the file `path` on."""

    path: Path
    type_name: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    """`fields` are its metadata, by GGUF's keys. Of several files, `path` is the first, whose metadata are all."""

    path: Path
    fields: Mapping[str, Any]
    tensors: Mapping[str, TensorPlace]

    @property
    def architecture(self) -> str:
        return str(self.fields.get("general.architecture"))

    def field(self, key: str) -> Any:  # noqa: ANN401  what a file says may be anything
        """Returns one of the keys that begin with the architecture's name; None: it is not there."""
        return self.fields.get(f"{self.architecture}.{key}")


def open_gguf(model: str, path: Path) -> GgufFile:
    """Reads no weights. The vocabulary is left out, as every list of strings. Of a checkpoint that is split, `path` is
    any of its files.

    Raises:
        ModelLoadError: a file is missing, truncated, or no GGUF file.
    """
    paths = parts_of(path)
    first = _opened(model, paths[0])
    count = first.fields.get("split.count", 1) or 1
    if count != len(paths):
        raise ModelLoadError(
            model=model,
            reason=f"{paths[0]} says that it is one of {count} files, its name says {len(paths)}",
            remedy="give the files the names that they came with (NAME-00001-of-0000N.gguf), all in one folder",
        )
    tensors = dict(first.tensors)
    for part in paths[1:]:
        tensors |= _opened(model, part).tensors
    return GgufFile(path=paths[0], fields=first.fields, tensors=tensors)


def _opened(model: str, path: Path) -> GgufFile:
    try:
        reader = _reader(path)
    except _CutOffError as error:
        reason = f"{path} is not a complete GGUF file, tensor {error.tensor} is not whole"
        raise ModelLoadError(model=model, reason=reason, remedy=_COPY_AGAIN) from error
    except (ValueError, KeyError, IndexError, TypeError, OSError, OverflowError, MemoryError, struct.error) as error:
        raise ModelLoadError(
            model=model, reason=f"{path} is missing or not a complete GGUF file: {error}", remedy=_COPY_AGAIN
        ) from error
    fields = {key: field.contents() for key, field in reader.fields.items() if not _is_list_of_strings(field)}
    tensors = {
        tensor.name: TensorPlace(
            path=path,
            type_name=tensor.tensor_type.name,
            shape=tuple(int(size) for size in reversed(tensor.shape.tolist())),
            offset=tensor.data_offset,
            num_bytes=tensor.n_bytes,
        )
        for tensor in reader.tensors
    }
    return GgufFile(path=path, fields=fields, tensors=tensors)


class _CutOffError(Exception):
    def __init__(self, tensor: str) -> None:
        super().__init__(tensor)
        self.tensor = tensor


def _reader(path: Path) -> Any:  # noqa: ANN401  the library has no types
    from gguf import (  # not for those who serve no such file
        GGML_QUANT_SIZES,
        GGMLQuantizationType,
        GGUFReader,
        GGUFValueType,
    )

    class Reader(GGUFReader):
        """Names the tensor that a truncated file does not hold to its end, and steps over the vocabulary, of which the
        library makes two arrays for each token.
        """

        def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:  # noqa: ANN401  as above
            if raw_type != GGUFValueType.ARRAY:
                return super()._get_field_parts(orig_offs, raw_type)
            data = self.data.data
            (of_type, count), offset = _ARRAY.unpack_from(data, orig_offs), orig_offs + _ARRAY.size
            if of_type in self.gguf_scalar_to_np and count > _MOST_NUMBERS:
                offset += count * np.dtype(self.gguf_scalar_to_np[GGUFValueType(of_type)]).itemsize
            elif of_type == GGUFValueType.STRING:
                for _ in range(count):
                    (length,) = _LENGTH.unpack_from(data, offset)
                    offset += _LENGTH.size + length
            else:
                return super()._get_field_parts(orig_offs, raw_type)
            return offset - orig_offs, [], [], [GGUFValueType.ARRAY, GGUFValueType.STRING]

        def _build_tensors(self, start_offs: int, fields: list[Any]) -> None:
            for field in fields:
                *_, dims, raw_type, offset = field.parts
                block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(raw_type[0])]
                end = start_offs + int(offset[0]) + int(dims.prod()) // block * block_bytes
                if end > len(self.data):
                    raise _CutOffError(field.name)
            super()._build_tensors(start_offs, fields)

    return Reader(path)


def _is_list_of_strings(field: Any) -> bool:  # noqa: ANN401  as above
    from gguf import GGUFValueType

    return bool(len(field.types) > 1 and field.types[-1] == GGUFValueType.STRING)
