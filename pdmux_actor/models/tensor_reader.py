"""Reads named tensors of a checkpoint straight into their places, from several threads at once."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.models.load_progress import OnProgress, ignore_progress
from pdmux_actor.models.shard_files import broken_shard, open_shard, shard_files

_STORED_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True, slots=True)
class TensorPart:
    """Part `index` of `count` equal ones of a tensor, cut along `dim`: what one rank of a tensor-parallel group has."""

    dim: int
    index: int
    count: int


class TensorReader:
    """Remembers which tensors were asked for."""

    def __init__(
        self,
        model: str,
        folder: Path,
        *,
        dtype: torch.dtype,
        device: torch.device | None = None,
        on_progress: OnProgress = ignore_progress,
        readers: int = 1,
    ) -> None:
        """`readers` share the tensors among them. `on_progress` is told how far it is after each tensor, on the thread
        that read it.

        Raises:
            ModelLoadError: a file is missing or broken.
        """
        self._model = model
        self._dtype = dtype
        self._device = device
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._read_bytes = 0
        self._total_bytes = 0
        self._unread: dict[str, Path] = {}
        self._files: dict[Path, safe_open] = {}
        for path, names in shard_files(model, folder).items():
            opened = self._files[path] = open_shard(model, path)
            present = set(opened.keys())  # type: ignore[no-untyped-call]  # the library has no types
            self._total_bytes += path.stat().st_size // readers
            for name in present if names is None else names & present:
                self._unread[name] = path

    @property
    def unread(self) -> frozenset[str]:
        return frozenset(self._unread)

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    def read(self, target: Tensor, name: str, part: TensorPart | None = None) -> None:
        """Copies tensor `name`, or a part of it, into `target`, which has the expected shape."""
        path = self._take(name)
        file = self._files[path]
        try:
            stored = file.get_slice(name)  # type: ignore[no-untyped-call]
            shape = list(stored.get_shape())
            expected = _whole_shape(target, part)
            if shape != expected:
                raise ModelLoadError(
                    model=self._model,
                    reason=f"{path}: tensor {name} has shape {shape}, config.json implies {expected}",
                    remedy="check that config.json belongs to these weights",
                )
            tensor: Tensor = _cut(stored, target, part) if part else file.get_tensor(name)  # type: ignore[no-untyped-call]  # the library has no types
        except (SafetensorError, OSError, RuntimeError) as error:
            raise broken_shard(self._model, path, error, name) from error
        if tensor.dtype not in _STORED_DTYPES:  # float8 or integers mean nothing without their scales
            raise ModelLoadError(
                model=self._model,
                reason=f"{path}: tensor {name} holds {str(tensor.dtype).removeprefix('torch.')}",
                remedy="use an unquantised checkpoint (float32, bfloat16 or float16)",
            )
        target.copy_(tensor)
        self._note_read(tensor.numel() * tensor.itemsize)

    def load(self, name: str, *shape: int, part: TensorPart | None = None) -> Tensor:
        target = torch.empty(shape, dtype=self._dtype, device=self._device)
        self.read(target, name, part)
        return target

    def load_stacked(
        self, sizes: Mapping[str, int], *trailing: int, parts: Mapping[str, TensorPart | None] | None = None
    ) -> Tensor:
        """Tensors `[size, *trailing]` on top of each other, each read straight into its place."""
        target = torch.empty((sum(sizes.values()), *trailing), dtype=self._dtype, device=self._device)
        offset = 0
        for name, size in sizes.items():
            self.read(target[offset : offset + size], name, None if parts is None else parts.get(name))
            offset += size
        return target

    def _take(self, name: str) -> Path:
        with self._lock:
            path = self._unread.pop(name, None)
        if path is None:
            raise ModelLoadError(
                model=self._model,
                reason=f"tensor {name} is missing",
                remedy="check that config.json belongs to these weights and that every shard is there",
            )
        return path

    def _note_read(self, num_bytes: int) -> None:
        with self._lock:
            self._read_bytes += num_bytes
            self._on_progress(self._read_bytes, self._total_bytes)


def _whole_shape(target: Tensor, part: TensorPart | None) -> list[int]:
    return [
        size * part.count if part is not None and dim == part.dim else size for dim, size in enumerate(target.shape)
    ]


def _cut(stored: Any, target: Tensor, part: TensorPart) -> Tensor:  # noqa: ANN401  the library's class has no name
    size = target.shape[part.dim]
    cut = slice(part.index * size, (part.index + 1) * size)
    tensor: Tensor = stored[cut] if part.dim == 0 else stored[:, cut]
    return tensor
