"""The safetensors files of a checkpoint: which tensors each holds, and what is wrong with one that does not open."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.models.checkpoint import read_json

_SINGLE_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"
_HEADER_LENGTH = struct.Struct("<Q")
_MAX_HEADER_BYTES = 100_000_000  # the format has this limit
_COPY_AGAIN = "copy or download the file again"


def shard_files(model: str, folder: Path) -> dict[Path, frozenset[str] | None]:
    """Weight files and the tensors each holds by the index; None stands for all. Raises ModelLoadError."""
    if (folder / _INDEX_FILE).exists():
        weight_map = read_json(model, folder, _INDEX_FILE).get("weight_map")
        if not isinstance(weight_map, dict) or not all(_is_beside(file) for file in weight_map.values()):
            raise ModelLoadError(
                model=model,
                reason=f"{folder / _INDEX_FILE} has no weight_map of tensor names to files in its folder",
                remedy=_COPY_AGAIN,
            )
        files: dict[Path, set[str]] = {}
        for name, file in weight_map.items():
            files.setdefault(folder / file, set()).add(name)
        return {path: frozenset(names) for path, names in files.items()}
    if (folder / _SINGLE_FILE).exists():
        return {folder / _SINGLE_FILE: None}
    raise ModelLoadError(
        model=model,
        reason=f"{folder} holds neither {_SINGLE_FILE} nor {_INDEX_FILE}",
        remedy="convert the checkpoint to safetensors (transformers: model.save_pretrained)",
    )


def open_shard(model: str, path: Path) -> safe_open:
    """Opens it so that what is read of it is copied, not mapped: pages of a mapped file would count as memory of this
    process until all of it is read.

    Raises:
        ModelLoadError: it is missing, truncated or no safetensors file.
    """
    try:
        return safe_open(path, framework="pt", backend="pread")
    except (SafetensorError, OSError) as error:
        raise broken_shard(model, path, error) from error


def check_shards(model: str, folder: Path) -> None:
    """Reads the head of each file, and no tensor; leaves torch out.

    Raises:
        ModelLoadError: there are none, or one is missing, truncated or no safetensors file.
    """
    for path in shard_files(model, folder):
        try:
            with safe_open(path, framework="np"):
                pass
        except (SafetensorError, OSError) as error:
            raise broken_shard(model, path, error) from error


def broken_shard(model: str, path: Path, error: Exception, tensor: str | None = None) -> ModelLoadError:
    """`tensor` could not be read; None: the file did not open."""
    cut_off = tensor or _first_cut_off(path)
    which = "" if cut_off is None else f", tensor {cut_off} is not whole"
    return ModelLoadError(
        model=model,
        reason=f"{path} is missing or not a complete safetensors file{which}: {error}",
        remedy=_COPY_AGAIN,
    )


def _is_beside(file: object) -> bool:
    """A checkpoint is somebody else's: its index opens nothing outside its folder."""
    return isinstance(file, str) and not Path(file).is_absolute() and ".." not in Path(file).parts


def _first_cut_off(path: Path) -> str | None:
    """The first tensor that a truncated file does not hold to its end; None of a file that is broken otherwise."""
    try:
        with path.open("rb") as file:
            (length,) = _HEADER_LENGTH.unpack(file.read(_HEADER_LENGTH.size))
            header = json.loads(file.read(min(length, _MAX_HEADER_BYTES)))
        data_bytes = path.stat().st_size - _HEADER_LENGTH.size - length
        return _first_ending_after(header, data_bytes)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error, RecursionError):
        return None


def _first_ending_after(header: Mapping[str, Mapping[str, tuple[int, int]]], data_bytes: int) -> str | None:
    ends = {name: of_tensor["data_offsets"] for name, of_tensor in header.items() if name != "__metadata__"}
    cut_off = [(first, name) for name, (first, end) in ends.items() if end > data_bytes]
    return min(cut_off)[1] if cut_off else None
