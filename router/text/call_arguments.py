"""Keeps arguments of calls what the model wrote where transformers' parser, given their tools, would make others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from router.text.schema_reference import referred

# Beside one of these a mask lets space stand around a string that is written without quotes.
_BOUNDS = frozenset({"const", "enum", "format", "maxLength", "minLength", "pattern"})
_KINDS = ("integer", "number", "boolean", "null", "object", "array", "string")  # the first that a text can be is taken
_DEEPEST = 64  # alternatives within alternatives; what lies deeper is not looked at

Tool = Mapping[str, Any]


def casting_tools(tools: Sequence[Tool], *, in_json: bool) -> list[dict[str, Any]]:
    """Returns what the parser is told of tools: it makes "7" a number where that is what a tool takes. In JSON, which
    says itself what is a number, it is told of no argument that may be a string: "007" is one.
    """
    told = []
    for name, values in _values(tools).items():
        properties = {
            key: {"type": sorted(value.kinds, key=_KINDS.index)}
            for key, value in values.items()
            if not (in_json and "string" in value.kinds)
        }
        told.append({"function": {"name": name, "parameters": {"properties": properties}}})
    return told


class ToolArguments:
    """Knows what schemas of tools say of arguments."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._values = _values(tools)

    def has_type(self, name: str, key: str) -> bool:
        return bool(self._values.get(name, {}).get(key, _Value()).kinds)

    def trimmed(self, name: str, arguments: object) -> object:
        """Takes space off strings of a certain form. The arguments of a call may be no object."""
        values = self._values.get(name)
        if not values or not isinstance(arguments, dict):
            return arguments
        return {
            key: value.strip() if isinstance(value, str) and values.get(key, _Value()).is_bounded else value
            for key, value in arguments.items()
        }


@dataclass(frozen=True, slots=True)
class _Value:
    """`is_bounded`: where it is a string, it is one of a certain form."""

    kinds: frozenset[str] = frozenset()
    is_bounded: bool = False


def _values(tools: Sequence[Tool]) -> dict[str, dict[str, _Value]]:
    """By tool and argument."""
    found = {}
    for tool in tools:
        parameters = tool["function"].get("parameters", {})
        properties = parameters.get("properties")
        if isinstance(properties, Mapping):
            known: dict[str, _Value] = {}
            values = {key: _value(schema, parameters, known) for key, schema in properties.items()}
            found[tool["function"]["name"]] = values
    return found


def kinds_of(schema: object, root: Mapping[str, Any]) -> frozenset[str]:
    """Returns the types that a value may have; none: the schema does not say. References are to places of `root`."""
    return _value(schema, root, {}).kinds


def _value(schema: object, root: Mapping[str, Any], known: dict[str, _Value], depth: int = 0) -> _Value:
    """`known` has what references refer to: each is followed once, also one that refers to itself."""
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return _Value()
    reference = schema.get("$ref")
    if isinstance(reference, str):
        if reference not in known:
            known[reference] = _Value()
            known[reference] = _value(referred(reference, root), root, known, depth + 1)
        return known[reference]
    several = [part for keyword in ("anyOf", "oneOf", "allOf") for part in _list(schema.get(keyword))]
    if not several:
        return _plain(schema)
    values = [_value(part, root, known, depth + 1) for part in several]
    kinds = frozenset().union(*(value.kinds for value in values))
    return _Value(kinds, all(value.is_bounded for value in values))


def _plain(schema: Mapping[str, Any]) -> _Value:
    kinds = frozenset(_kinds(schema))
    may_be_text = "string" in kinds or not kinds
    return _Value(kinds, not may_be_text or bool(_BOUNDS & schema.keys()))


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


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
