"""Follows references inside one JSON schema."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote


def referred(reference: str, root: Mapping[str, Any]) -> object:
    """Returns what `#/...`, a JSON pointer in a fragment, names: `~1` is a slash, `%20` a space, a number a place in a
    list. None: there is nothing.
    """
    place: object = root
    for step in reference.removeprefix("#").split("/")[1:]:
        place = _inside(place, step.replace("~1", "/").replace("~0", "~"))
    return place


def is_plain(reference: str, root: Mapping[str, Any]) -> bool:
    """Says that the reference names each of its steps as the schema does."""
    place: object = root
    for step in reference.removeprefix("#").split("/")[1:]:
        place = place.get(step) if isinstance(place, Mapping) else None
    return place is not None and "~" not in reference


def _inside(place: object, name: str) -> object:
    match place:
        case Mapping():
            return place.get(name, place.get(unquote(name)))
        case list() if name.isdecimal() and len(name) < 10 and int(name) < len(place):
            return place[int(name)]
    return None
