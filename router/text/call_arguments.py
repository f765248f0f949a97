"""Keeps arguments of calls what the model wrote where transformers' parser, given their tools, would make others."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# Beside one of these a mask lets space stand around a string that is written without quotes.
_BOUNDS = frozenset({"const", "enum", "format", "maxLength", "minLength", "pattern"})
_KINDS = ("integer", "number", "boolean", "null", "object", "array", "string")  # the first that a text can be is taken
_DEEPEST = 16  # alternatives within alternatives

Tool = Mapping[str, Any]


def casting_tools(tools: Sequence[Tool], *, in_json: bool) -> list[dict[str, Any]]:
    """Returns what the parser is told of tools: it makes "7" a number where that is what a tool takes. In JSON, which
    says itself what is a number, it is told of no argument that may be a string: "007" is one.
    """
    told = []
    for name, places in _places(tools).items():
        kinds = {
            key: sorted({kind for one in parts for kind in _kinds(one)}, key=_rank) for key, parts in places.items()
        }
        properties = {key: {"type": one} for key, one in kinds.items() if not (in_json and "string" in one)}
        told.append({"function": {"name": name, "parameters": {"properties": properties}}})
    return told


class BoundedStrings:
    """Knows which arguments are strings of a certain form, which have no space around them."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._bounded = {
            name: {key for key, parts in places.items() if parts and all(map(_is_bounded, parts))}
            for name, places in _places(tools).items()
        }

    def trimmed(self, name: str, arguments: object) -> object:
        """Returns the arguments of a call, which may be no object."""
        bounded = self._bounded.get(name)
        if not bounded or not isinstance(arguments, dict):
            return arguments
        return {
            key: value.strip() if key in bounded and isinstance(value, str) else value
            for key, value in arguments.items()
        }


def _places(tools: Sequence[Tool]) -> dict[str, dict[str, list[Mapping[str, Any]]]]:
    """By tool and argument: the schemas of which one holds."""
    found = {}
    for tool in tools:
        parameters = tool["function"].get("parameters", {})
        properties = parameters.get("properties")
        if isinstance(properties, Mapping):
            places = {key: list(_alternatives(one, parameters, set())) for key, one in properties.items()}
            found[tool["function"]["name"]] = places
    return found


def _alternatives(
    schema: object, root: Mapping[str, Any], seen: set[str], depth: int = 0
) -> Iterator[Mapping[str, Any]]:
    """`seen` are references that were followed: each is once."""
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return
    reference = schema.get("$ref")
    if isinstance(reference, str):
        if reference not in seen:
            seen.add(reference)
            yield from _alternatives(_referred(reference, root), root, seen, depth + 1)
        return
    several = [part for keyword in ("anyOf", "oneOf", "allOf") for part in _list(schema.get(keyword))]
    for part in several:
        yield from _alternatives(part, root, seen, depth + 1)
    if not several:
        yield schema


def _referred(reference: str, root: Mapping[str, Any]) -> object:
    place: object = root
    for step in reference.removeprefix("#").split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        place = place.get(name) if isinstance(place, Mapping) else None
    return place


def _kinds(schema: Mapping[str, Any]) -> list[str]:
    kinds = schema.get("type")
    if kinds is None:
        return [
            _kind(value) for value in [*_list(schema.get("enum")), *([schema["const"]] if "const" in schema else [])]
        ]
    return [kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if kind in _KINDS]


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def _rank(kind: str) -> int:
    return _KINDS.index(kind)


def _is_bounded(schema: Mapping[str, Any]) -> bool:
    kinds = _kinds(schema)
    return bool(_BOUNDS & schema.keys()) if "string" in kinds or not kinds else True


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
