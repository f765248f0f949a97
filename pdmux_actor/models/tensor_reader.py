"""Reads named tensors of a checkpoint straight into their places, from several threads at once."""

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.models.expert_stacks import ExpertStacks, PlainProduct, StackedSource
from pdmux_actor.models.gguf_files.file_tensors import GgufTensors
from pdmux_actor.models.load_progress import OnProgress, ignore_progress
from pdmux_actor.models.quantised_weight import QuantisedWeight, rounded_to, stacked
from pdmux_actor.models.shard_files import broken_shard, open_shard, shard_files
from pdmux_actor.models.stored_formats.entry import StoredWeights
from pdmux_actor.models.stored_levels import StoredProduct
from pdmux_actor.models.uploads import Upload, copy_in_place, moved
from profiler.weight_formats import WEIGHT_FORMATS

_STORED_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True, slots=True)
class TensorPart:
    """Part `index` of `count` equal ones of a tensor, cut along `dim`: what one rank of a tensor-parallel group has."""

    dim: int
    index: int
    count: int


class TensorReader:
    """Remembers which tensors were asked for. What a quantised checkpoint has is unpacked."""

    def __init__(
        self,
        model: str,
        folder: Path,
        *,
        dtype: torch.dtype,
        device: torch.device | None = None,
        upload: Upload = copy_in_place,
        on_progress: OnProgress = ignore_progress,
        readers: int = 1,
        stored: StoredWeights | None = None,
        gguf: GgufTensors | None = None,
        keeps: str | None = None,
        stacks: ExpertStacks | None = None,
    ) -> None:
        """`upload` copies to `device`. `readers` share the tensors among them. `on_progress` is told how far it is
        after each tensor, on the thread that read it. `stored` is the format of a quantised checkpoint, `gguf` stands
        in for the files of a folder, `keeps` is what products of either are kept in, of ModelSpec. `stacks` says where
        experts are that have no tensor of their own.

        Raises:
            ModelLoadError: a file is missing or broken.
        """
        self._model = model
        self._dtype = dtype
        self._device = device
        self._upload = upload
        self._on_progress = on_progress
        self._stored = stored
        self._gguf = gguf
        self._keeps = keeps
        self._stacks = stacks
        self._read_stacks: dict[str, Path] = {}
        self._lock = threading.Lock()
        self._read_bytes = 0
        self._total_bytes = 0
        self._unread: dict[str, Path] = {}
        self._files: dict[Path, safe_open] = {}
        if gguf is not None:
            self._total_bytes = gguf.num_bytes // readers
            self._unread = dict.fromkeys(gguf.names, gguf.path)
            return
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
        levels = self._levels(name, _whole_shape(list(target.shape), part), part)
        if levels is not None:
            self._write_dense(levels, target)
            return
        path = self._take(name)
        file = self._files[path]
        try:
            stored = file.get_slice(name)  # type: ignore[no-untyped-call]
            shape = list(stored.get_shape())
            expected = _whole_shape(list(target.shape), part)
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
                remedy="check that `quantization_config` of config.json belongs to these weights",
            )
        self._upload(target, tensor)
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

    def load_product(
        self, sizes: Mapping[str, int], columns: int, parts: Mapping[str, TensorPart | None] | None = None
    ) -> Tensor | QuantisedWeight:
        """Weights `[size, columns]` on top of each other: the very levels of the checkpoint, where the engine keeps
        them. A part of the columns is cut from levels of the whole: every rank then has what one of one rank has.
        """
        by_columns = next((part for part in (parts or {}).values() if part is not None and part.dim == 1), None)
        if by_columns is not None and self._keeps is not None:
            ((name, size),) = sizes.items()
            return self._rounded_columns(name, size, columns, by_columns, self._keeps)
        if (self._stored is None and self._gguf is None) or self._keeps is None:
            return self.load_stacked(sizes, columns, parts=parts)
        found = []
        for name, size in sizes.items():
            part = None if parts is None else parts.get(name)
            found.append(self._levels(name, _whole_shape([size, columns], part), part))
        kept = [None if levels is None else levels.kept_as(self._keeps, self._dtype) for levels in found]
        whole = [weight for weight in kept if weight is not None]
        if len(whole) == len(kept) and len({(w.middle is None, w.scale.shape[1:]) for w in whole}) == 1:
            return stacked(whole).placed(partial(moved, self._device, self._upload))
        target = torch.empty((sum(sizes.values()), columns), dtype=self._dtype, device=self._device)
        offset = 0
        for (name, size), levels in zip(sizes.items(), found, strict=True):
            rows = target[offset : offset + size]
            if levels is None:
                self.read(rows, name, None if parts is None else parts.get(name))
            else:
                self._write_dense(levels, rows)
            offset += size
        return target

    def _write_dense(self, levels: StoredProduct, target: Tensor) -> None:
        """Unfolds on the host, whatever the device: each part by itself would be a copy from pageable memory."""
        if target.is_cpu:
            levels.write_dense(target)
            return
        dense = torch.empty(target.shape, dtype=target.dtype)
        levels.write_dense(dense)
        self._upload(target, dense)

    def all_tensors(self) -> Iterator[tuple[str, Tensor | StoredProduct]]:
        """Yields all that is unread, whatever its shape: weights of products as they are stored, then the others."""
        if self._stored is not None:
            for weight in self._stored.weights(self._unread):
                names = self._stored.tensors_of(weight, self._unread)
                yield weight, self._unpacked(weight, names, self._stored)
        for name in sorted(self._unread):
            yield name, self._whole(name)

    def _rounded_columns(
        self, name: str, rows: int, columns: int, part: TensorPart, keeps: str
    ) -> Tensor | QuantisedWeight:
        whole = self.load_product({name: rows}, columns * part.count)
        cut = slice(part.index * columns, (part.index + 1) * columns)
        if isinstance(whole, Tensor) and WEIGHT_FORMATS[keeps].of_experts:
            return whole[:, cut].contiguous()  # it is no expert's
        rounded = rounded_to(keeps, whole) if isinstance(whole, Tensor) else whole
        kept = rounded.columns(cut.start, cut.stop)
        return rounded.dense()[:, cut].contiguous() if kept is None else kept

    def _levels(self, weight: str, shape: list[int], part: TensorPart | None) -> StoredProduct | None:
        """Of `weight`, which is `shape` in the checkpoint, or of a part of it; None: it is stored plainly."""
        if self._gguf is not None:
            path = self._take(weight)
            tensor = self._gguf.tensor(weight)
            self._note_read(tensor.num_bytes // (1 if part is None else part.count))
            return self._part_of(tensor, path, weight, shape, part)
        source = None if self._stacks is None else self._stacks.source_of(weight)
        if source is not None:
            return self._part_of(*self._of_stack(source), shape, part)
        names = {} if self._stored is None else self._stored.tensors_of(weight, self._unread)
        if self._stored is None or not names:
            return None
        first = next(iter(names.values()))
        path = self._unread[first]
        return self._part_of(self._unpacked(weight, names, self._stored), path, first, shape, part)

    def _unpacked(self, weight: str, names: Mapping[str, str], stored: StoredWeights) -> StoredProduct:
        first = next(iter(names.values()))
        path = self._unread[first]
        tensors = {kind: self._whole(name) for kind, name in names.items()}
        return self._levels_of(tensors, weight, path, first, stored)

    def _levels_of(
        self, tensors: Mapping[str, Tensor], weight: str, path: Path, first: str, stored: StoredWeights
    ) -> StoredProduct:
        try:
            return stored.unpack(tensors)
        except KeyError as error:
            raise self._missing(f"{weight.rpartition('.')[0]}.{error.args[0]}") from error
        except (ValueError, RuntimeError, IndexError, ArithmeticError) as error:
            raise ModelLoadError(
                model=self._model,
                reason=f"{path}: tensor {first} does not go with what belongs to it: {error}",
                remedy="check that `quantization_config` of config.json belongs to these weights",
            ) from error

    def _of_stack(self, source: StackedSource) -> tuple[StoredProduct, Path, str]:
        """One expert's part, the file that has it, and the name of its tensor there."""
        stored = self._stored
        if stored is None or not stored.format.of_stacks or source.is_bias:
            tensor, path = self._expert(source.stack, source)
            return PlainProduct(source.outputs(tensor if source.is_bias else tensor.t())), path, source.stack
        tensors: dict[str, Tensor] = {}
        for kind in stored.format.tensors:
            name = f"{source.stack}_{kind}"
            tensor, path = self._expert(name, source)
            tensors[kind] = source.outputs(tensor)
        return self._levels_of(tensors, f"{source.stack}.weight", path, name, stored), path, name

    def _expert(self, stack: str, source: StackedSource) -> tuple[Tensor, Path]:
        with self._lock:
            path = self._read_stacks.get(stack) or self._unread.pop(stack, None)
            if path is None:
                raise self._missing(stack)
            self._read_stacks[stack] = path
        try:
            stored = self._files[path].get_slice(stack)  # type: ignore[no-untyped-call]  # as above
            shape = list(stored.get_shape())
            if shape[:1] != [source.num_experts]:
                raise ModelLoadError(
                    model=self._model,
                    reason=f"{path}: tensor {stack} has shape {shape}, config.json implies "
                    f"{source.num_experts} experts",
                    remedy="check that config.json belongs to these weights",
                )
            tensor: Tensor = stored[source.expert : source.expert + 1][0]
        except (SafetensorError, OSError, RuntimeError) as error:
            raise broken_shard(self._model, path, error, stack) from error
        self._note_read(tensor.numel() * tensor.itemsize // (1 if source.turn is None else 2))
        return tensor, path

    def _part_of(
        self, product: StoredProduct, path: Path, name: str, shape: list[int], part: TensorPart | None
    ) -> StoredProduct:
        if product.shape != shape:
            raise ModelLoadError(
                model=self._model,
                reason=f"{path}: tensor {name} unpacks to shape {product.shape}, config.json implies {shape}",
                remedy="check that config.json belongs to these weights",
            )
        if part is None:
            return product
        size = shape[part.dim] // part.count
        cut = (part.index * size, (part.index + 1) * size)
        return product.rows(*cut) if part.dim == 0 else product.columns(*cut)

    def _whole(self, name: str) -> Tensor:
        path = self._take(name)
        try:
            tensor: Tensor = self._files[path].get_tensor(name)  # type: ignore[no-untyped-call]  # as above
        except (SafetensorError, OSError, RuntimeError) as error:
            raise broken_shard(self._model, path, error, name) from error
        self._note_read(tensor.numel() * tensor.itemsize)
        return tensor

    def _missing(self, name: str) -> ModelLoadError:
        return ModelLoadError(
            model=self._model,
            reason=f"tensor {name} is missing",
            remedy="check that config.json belongs to these weights and that every shard is there",
        )

    def _take(self, name: str) -> Path:
        with self._lock:
            path = self._unread.pop(name, None)
        if path is None:
            raise self._missing(name)
        return path

    def _note_read(self, num_bytes: int) -> None:
        with self._lock:
            self._read_bytes += num_bytes
            self._on_progress(self._read_bytes, self._total_bytes)


def _whole_shape(shape: list[int], part: TensorPart | None) -> list[int]:
    return [size * part.count if part is not None and dim == part.dim else size for dim, size in enumerate(shape)]


def _cut(stored: Any, target: Tensor, part: TensorPart) -> Tensor:  # noqa: ANN401  the library's class has no name
    size = target.shape[part.dim]
    cut = slice(part.index * size, (part.index + 1) * size)
    tensor: Tensor = stored[cut] if part.dim == 0 else stored[:, cut]
    return tensor
