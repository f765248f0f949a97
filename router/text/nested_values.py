"""Reads arguments of calls that are tags of their own names, objects and lists with tags within: MiniMax M3's."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from router.text.call_arguments import kinds_of
from router.text.schema_reference import referred
from router.text.tagged_call_forms import MINIMAX_M3_TAG

_DEEPEST = 64
_ITEM = "item"  # how an entry of a list is called
_Schema = Mapping[str, Any]


class NestedValues:
    """Knows the schemas of tools: a text is what they say it is, else JSON, where it is that, else a text."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self._schemas = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in tools}

    def read(self, name: str, arguments: Mapping[str, str]) -> dict[str, object]:
        """Takes what stands between the tags of each argument of the tool `name`."""
        root = self._schemas.get(name, {})
        return {key: _value(said, _child(root, root, "properties", key), root) for key, said in arguments.items()}


def _value(said: str, schema: _Schema, root: _Schema, depth: int = 0) -> object:
    import regex  # type: ignore[import-untyped]  # the parser's own, which takes half a second; it has no types

    tags = list(regex.finditer(MINIMAX_M3_TAG, said, regex.DOTALL)) if depth < _DEEPEST else []
    if not tags:
        return _leaf(said, kinds_of(schema, root))
    kinds = kinds_of(schema, root)
    if all(tag["key"] == _ITEM for tag in tags) and (not kinds or "array" in kinds):
        items = _child(schema, root, "items")
        return [_value(tag["value"], items, root, depth + 1) for tag in tags]
    return {
        tag["key"]: _value(tag["value"], _child(schema, root, "properties", tag["key"]), root, depth + 1)
        for tag in tags
    }


def _leaf(said: str, kinds: frozenset[str]) -> object:
    if "string" in kinds and not ("null" in kinds and said.strip() == "null"):
        return said
    return json_or_text(said)


def json_or_text(said: str) -> object:
    """Returns what the text says as JSON; the text where it is none."""
    try:
        return msgspec.json.decode(said)
    except (ValueError, RecursionError):
        return said


def _child(schema: _Schema, root: _Schema, *path: str) -> _Schema:
    for part in _parts(schema, root):
        place: object = part
        for step in path:
            place = place.get(step) if isinstance(place, Mapping) else None
        if isinstance(place, Mapping):
            return place
    return {}


def _parts(schema: object, root: _Schema, depth: int = 0) -> Iterator[_Schema]:
    """Yields the schema, what it refers to, and its alternatives."""
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return
    yield schema
    reference = schema.get("$ref")
    if isinstance(reference, str):
        yield from _parts(referred(reference, root), root, depth + 1)
    for keyword in ("anyOf", "oneOf", "allOf"):
        several = schema.get(keyword)
        for part in several if isinstance(several, list) and depth < 2 else ():
            yield from _parts(part, root, depth + 1)
