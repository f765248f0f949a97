"""Reads what models' checkpoints are, beside the control loop, and again until they can be read."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from deploy.errors import SourceNotFound
from deploy.fleet_file.model_catalog import CatalogModel
from deploy.fleet_file.model_section import ModelSection
from deploy.fleet_file.model_specs import AdapterSource, adapters_of, bytes_of_adapters, read_model_spec
from profiler.errors import UnsupportedModel
from profiler.specs import ModelSpec

logger = logging.getLogger(__name__)

_RETRY_S = 30.0
_PATIENCE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _SpecKey:
    model: str
    source: str
    revision: str | None
    dtype: str | None
    weights: str | None
    adapters: tuple[AdapterSource, ...]


@dataclass(frozen=True, slots=True)
class _KnownShape:
    spec: ModelSpec
    adapters_bytes: int


class ModelShapes:
    """`on_read` is called when something more is known, or known to be wrong."""

    def __init__(self, on_read: Callable[[], None]) -> None:
        self._on_read = on_read
        self._models: Sequence[ModelSection] = ()
        self._dtype: str | None = None
        self._shapes: dict[_SpecKey, _KnownShape] = {}
        self._problems: dict[_SpecKey, str] = {}
        self._reading: dict[_SpecKey, asyncio.Task[None]] = {}

    def follow(self, models: Sequence[ModelSection], dtype: str | None) -> None:
        """Begins to read what is new. `dtype` is that of models without one."""
        self._models, self._dtype = models, dtype
        wanted = {self._key(m) for m in models if m.base is None}
        for key in [k for k in self._reading if k not in wanted]:
            self._reading.pop(key).cancel()
        for key in wanted - self._shapes.keys() - self._reading.keys():
            self._reading[key] = asyncio.create_task(self._read(key))

    async def read_quickly(self) -> None:
        """Returns when all are read, soon at the latest: local checkpoints are read in milliseconds, and a first plan
        should be made with all of them at once.
        """
        if self._reading:
            await asyncio.wait(list(self._reading.values()), timeout=_PATIENCE_S)

    def catalog_model(self, model: ModelSection, created_s: int) -> CatalogModel:
        """Returns what is known of one of the models followed."""
        key = self._key(model)
        shape = self._shape(key)
        return CatalogModel(
            settings=model,
            dtype=key.dtype,
            created_s=created_s,
            spec=None if shape is None else shape.spec,
            problem=None if shape is not None else self._problems.get(key),
            base=next((m for m in self._models if m.id == model.base), None),
            adapters_bytes=0 if shape is None else shape.adapters_bytes,
        )

    def _key(self, model: ModelSection) -> _SpecKey:
        return _SpecKey(
            model=model.id,
            source=model.source,
            revision=model.revision,
            dtype=model.dtype or self._dtype,
            weights=model.weights,
            adapters=adapters_of(self._models, model.id),
        )

    def _shape(self, key: _SpecKey) -> _KnownShape | None:
        """A base is known while what has changed of its adapters is read."""
        before = (known for k, known in self._shapes.items() if replace(k, adapters=key.adapters) == key)
        return self._shapes.get(key) or next(before, None)

    async def _read(self, key: _SpecKey) -> None:
        while True:
            try:
                self._shapes[key] = await asyncio.to_thread(_read_shape, key)
            except (SourceNotFound, UnsupportedModel) as error:
                logger.warning("checkpoint not usable", extra={"model": key.model, "reason": str(error)})
                self._problems[key] = str(error)
                self._on_read()
                await asyncio.sleep(_RETRY_S)
            else:
                self._problems.pop(key, None)
                del self._reading[key]
                self._on_read()
                return


def _read_shape(key: _SpecKey) -> _KnownShape:
    spec = read_model_spec(key.model, key.source, key.revision, key.dtype, key.weights)
    return _KnownShape(spec, bytes_of_adapters(spec, key.adapters))
