"""Opens a GGUF file: what it says of itself, and where its tensors lie."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pdmux_actor.errors import ModelLoadError

_COPY_AGAIN = "copy or download the file again"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPlace:
    """`shape` in torch's order; the bytes of a row of blocks are together, from `offset` of the file on."""

    type_name: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    """`fields` are its metadata, by GGUF's keys."""

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
    """Reads no weights. Lists of strings, the vocabulary, are left out.

    Raises:
        ModelLoadError: it is missing, truncated, or no GGUF file.
    """
    try:
        reader = _reader(path)
    except _CutOffError as error:
        reason = f"{path} is not a complete GGUF file, tensor {error.tensor} is not whole"
        raise ModelLoadError(model=model, reason=reason, remedy=_COPY_AGAIN) from error
    except (ValueError, KeyError, IndexError, TypeError, OSError, OverflowError, MemoryError) as error:
        raise ModelLoadError(
            model=model, reason=f"{path} is missing or not a complete GGUF file: {error}", remedy=_COPY_AGAIN
        ) from error
    fields = {key: field.contents() for key, field in reader.fields.items() if not _is_list_of_strings(field)}
    if fields.get("split.count", 1) > 1:
        raise ModelLoadError(
            model=model,
            reason=f"{path} is one of {fields['split.count']} files",
            remedy="join them (llama.cpp: llama-gguf-split --merge FIRST_FILE WHOLE_FILE)",
        )
    tensors = {
        tensor.name: TensorPlace(
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
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader  # not for those who serve no such file

    class Reader(GGUFReader):
        """Names the tensor that a truncated file does not hold to its end."""

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
