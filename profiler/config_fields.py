"""Reads numbers of a checkpoint's config.json."""

from collections.abc import Mapping
from typing import Any

from profiler.errors import UnsupportedModel


def count(config: Mapping[str, Any], field: str, *, default: int | None = None) -> int:
    """Raises UnsupportedModel: the field is missing and has no default, or is no positive whole number."""
    value = config.get(field)
    if value is None:
        value = default
    if value is None:
        raise UnsupportedModel(field=field, value="<missing>", remedy="add it to the checkpoint's config.json")
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise UnsupportedModel(field=field, value=str(value), remedy="it must be a positive whole number")
    return value
