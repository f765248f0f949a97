"""Reads what planning needs of LoRA adapters: their ranks, and what they change."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from deploy.errors import SourceNotFound
from deploy.fleet_file.model_section import ModelSection
from deploy.fleet_file.model_specs import read_source_json
from placement.estimation.memory import AdapterShape, adapters_bytes
from profiler.adapter_sites import projection_shapes
from profiler.specs import ModelSpec

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AdapterSource:
    model: str
    source: str
    revision: str | None


def adapters_of(models: Iterable[ModelSection], base: str) -> tuple[AdapterSource, ...]:
    return tuple(AdapterSource(m.id, m.source, m.revision) for m in models if m.base == base)


def bytes_of_adapters(spec: ModelSpec, adapters: Iterable[AdapterSource]) -> int:
    """Blocks on disk, or on the network for Hugging Face ids. Adapters that cannot be read, which a unit refuses to
    load, count nothing.
    """
    shapes = []
    for adapter in adapters:
        try:
            config = read_source_json(adapter.model, adapter.source, adapter.revision, "adapter_config.json")
        except SourceNotFound as error:
            _LOG.warning("adapter is not planned for", extra={"model": adapter.model, "reason": str(error)})
            continue
        shapes.append(_shape(config, frozenset(projection_shapes(spec))))
    return adapters_bytes(spec, shapes)


def _shape(config: Mapping[str, Any], projections: frozenset[str]) -> AdapterShape:
    """PEFT names modules, or writes an expression, which is taken for all of them."""
    named, patterns = config.get("target_modules"), config.get("rank_pattern")
    ranks = [config.get("r"), *(patterns.values() if isinstance(patterns, dict) else ())]
    changed = projections.intersection(named) if isinstance(named, list) else projections
    return AdapterShape(
        rank=max((r for r in ranks if isinstance(r, int) and r > 0), default=1), projections=changed or projections
    )
