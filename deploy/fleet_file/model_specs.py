"""Reads the shapes of checkpoints and of LoRA adapters, which placement needs, without their weights."""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
)

from deploy.errors import SourceNotFound
from deploy.fleet_file.model_section import DemandSection, ModelSection, SloSection
from pdmux_actor.errors import ModelLoadError
from pdmux_actor.models.gguf_files.hub_files import gguf_file
from pdmux_actor.models.gguf_files.layout_folder import layout_folder
from placement.estimation.memory import AdapterShape, adapters_bytes
from profiler.adapter_sites import projection_shapes
from profiler.specs import AUTO_DTYPE, ModelSpec


def read_model_spec(
    model: str, source: str, revision: str | None, dtype: str | None, weights: str | None = None
) -> ModelSpec:
    """Blocks on disk, or on the network for a Hugging Face id. For dtype "auto" the larger of what it may become.

    Raises:
        SourceNotFound: no config.json to be had there, or a GGUF file that is not served.
        UnsupportedModel: the config.json describes a model that the engine cannot serve.
    """
    dtype = "float32" if dtype == AUTO_DTYPE else dtype
    return ModelSpec.from_config(read_source_json(model, source, revision, "config.json"), dtype, weights)


def read_source_json(model: str, source: str, revision: str | None, name: str) -> dict[str, Any]:
    """Reads a file of a checkpoint. Blocks as `read_model_spec`. Raises SourceNotFound."""
    try:
        gguf = gguf_file(model, source, revision)
        if gguf is not None:
            file = layout_folder(model, gguf) / name
        else:
            file = Path(source) / name if Path(source).is_absolute() else _download(model, source, revision, name)
        config = json.loads(file.read_text(encoding="utf-8"))
    except ModelLoadError as error:
        raise SourceNotFound(model=model, source=source, remedy=f"{error.reason}; {error.remedy}") from error
    except OSError as error:
        remedy = f"{name} cannot be read ({error.strerror})"
        raise SourceNotFound(model=model, source=source, remedy=remedy) from error
    except (ValueError, RecursionError) as error:
        remedy = f"its {name} is not JSON; fetch the checkpoint again"
        raise SourceNotFound(model=model, source=source, remedy=remedy) from error
    if not isinstance(config, dict):
        raise SourceNotFound(model=model, source=source, remedy=f"its {name} is not a JSON object")
    return config


def _download(model: str, source: str, revision: str | None, name: str) -> Path:
    """What the cache holds is not asked for again: without a network that would take half a minute for every model."""
    try:
        cached = huggingface_hub.try_to_load_from_cache(source, name, revision=revision)
        if isinstance(cached, str):
            return Path(cached)
        _ask_once(source, revision, name)
        return Path(huggingface_hub.hf_hub_download(source, name, revision=revision))
    except HFValidationError as error:
        remedy = "neither a folder (write ./name) nor a Hugging Face id (org/name)"
        raise SourceNotFound(model=model, source=source, remedy=remedy) from error
    except LocalEntryNotFoundError as error:
        remedy = (
            f"{constants.ENDPOINT} is not reachable and Hugging Face's cache does not hold it; make `source` a local "
            "folder, or name a mirror in HF_ENDPOINT"
        )
        raise SourceNotFound(model=model, source=source, remedy=remedy) from error
    except RemoteEntryNotFoundError as error:
        remedy = f"it has no {name}; of GGUF files write {source}:Q4_K_M, or {source}/FILE.gguf"
        raise SourceNotFound(model=model, source=source, remedy=remedy) from error
    except HfHubHTTPError as error:
        remedy = "Hugging Face does not give it out; check the id, the revision and HF_TOKEN"
        raise SourceNotFound(model=model, source=source, remedy=remedy) from error
    except Exception as error:  # a connection that breaks off, a proxy: the library lets its HTTP client's through
        remedy = (
            f"its {name} cannot be fetched from {constants.ENDPOINT} ({' '.join(str(error).split())}); check the "
            "network, its proxy, HF_ENDPOINT and HF_HOME, or make `source` a local folder"
        )
        raise SourceNotFound(model=model, source=source, remedy=remedy) from error


def _ask_once(source: str, revision: str | None, name: str) -> None:
    """Raises what the library's HTTP client raises where nobody answers. The library itself would go on trying for half
    a minute, and say so each time; what the hub does answer it tells better.
    """
    with suppress(HfHubHTTPError, OfflineModeIsEnabled):
        huggingface_hub.get_hf_file_metadata(huggingface_hub.hf_hub_url(source, name, revision=revision))


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
