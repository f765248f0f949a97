"""Reads what planning needs of LoRA adapters: their ranks, what they change, and what is asked of them."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deploy.errors import SourceNotFound
from deploy.fleet_file.model_section import DemandSection, ModelSection, SloSection
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


def with_adapters_folded(models: Sequence[ModelSection]) -> tuple[ModelSection, ...]:
    """Returns the bases, for plans of models that no unit holds yet: each with what is asked of its adapters, too, and
    the tightest targets of them all.
    """
    return tuple(_folded(m, [a for a in models if a.base == m.id]) for m in models if m.base is None)


def _folded(base: ModelSection, adapters: Sequence[ModelSection]) -> ModelSection:
    if not adapters:
        return base
    family = [base, *adapters]
    demands = [m.demand for m in family]
    rate_per_s = sum(d.rate_per_s for d in demands)
    weights = [d.rate_per_s / rate_per_s if rate_per_s else 1 / len(demands) for d in demands]
    demand = DemandSection(
        rate_per_s=rate_per_s,
        prompt_tokens=max(1, round(sum(w * d.prompt_tokens for w, d in zip(weights, demands, strict=True)))),
        output_tokens=max(1, round(sum(w * d.output_tokens for w, d in zip(weights, demands, strict=True)))),
        arrival_cv=max(d.arrival_cv for d in demands),
    )
    slo = SloSection(ttft_s=min(m.slo.ttft_s for m in family), tbt_s=min(m.slo.tbt_s for m in family))
    # One that must be there keeps its base there.
    least = max(base.replicas.min, min(1, max(m.replicas.min for m in adapters)))
    replicas = base.replicas.model_copy(update={"min": least})
    return base.model_copy(update={"demand": demand, "slo": slo, "replicas": replicas})
