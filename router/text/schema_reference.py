"""Follows references inside one JSON schema."""

from collections.abc import Mapping
from typing import Any


def referred(reference: str, root: Mapping[str, Any]) -> object:
    """Returns what `#/...` names. None: there is nothing."""
    place: object = root
    for step in reference.removeprefix("#").split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        place = place.get(name) if isinstance(place, Mapping) else None
    return place
