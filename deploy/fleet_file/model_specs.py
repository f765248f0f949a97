"""Reads the shape of a checkpoint, which placement needs, without its weights."""

import json
from contextlib import suppress
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
from pdmux_actor.errors import ModelLoadError
from pdmux_actor.models.gguf_files.hub_files import gguf_file
from pdmux_actor.models.gguf_files.layout_folder import layout_folder
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
