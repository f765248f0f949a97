"""Formats of quantised checkpoints by `quant_method`: every file of this folder that declares a FORMAT."""

from collections.abc import Mapping
from typing import Any

from pdmux_actor.models.stored_formats.entry import StoredFormat, StoredWeights
from profiler.errors import UnsupportedModel
from traces.register import Register

FORMATS = Register("pdmux_actor.models.stored_formats", "FORMAT", StoredFormat)

_FIELD = "quantization_config"


def stored_weights(config: Mapping[str, Any]) -> StoredWeights | None:
    """Reads `quantization_config` of a config.json; None: nothing is quantised.

    Raises:
        UnsupportedModel: no format of the register.
    """
    settings = config.get(_FIELD)
    if settings is None:
        return None
    method = str(settings.get("quant_method")) if isinstance(settings, Mapping) else "None"
    if method not in FORMATS:
        raise UnsupportedModel(
            field=f"{_FIELD}.quant_method",
            value=method,
            remedy=f"use a checkpoint of {', '.join(FORMATS)}, or an unquantised one",
        )
    stored = FORMATS[method]
    try:
        stored.check(settings)
    except UnsupportedModel as error:
        raise UnsupportedModel(field=f"{_FIELD}.{error.field}", value=error.value, remedy=error.remedy) from error
    return StoredWeights(format=stored, settings=settings)
