"""Reads the shape of a checkpoint that has no weights, or whose weights nobody needs."""

import json
from pathlib import Path

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.models.gguf_files.layout_folder import is_gguf, layout_folder
from profiler.errors import UnsupportedModel
from profiler.specs import AUTO_DTYPE, ModelSpec


def read_shape(model: str, source: str, dtype: str | None, weights: str | None = None) -> ModelSpec:
    """Reads a local folder's config.json, or a GGUF file. Raises ModelLoadError."""
    path = (layout_folder(model, Path(source)) if is_gguf(source) else Path(source)) / "config.json"
    try:
        return ModelSpec.from_config(json.loads(path.read_bytes()), None if dtype == AUTO_DTYPE else dtype, weights)
    except FileNotFoundError:
        remedy = "set source to a local folder in Hugging Face layout"
        raise ModelLoadError(model=model, reason=f"{path} does not exist", remedy=remedy) from None
    except (UnsupportedModel, ValueError) as error:
        raise ModelLoadError(model=model, reason=str(error), remedy="fix its config.json") from error
