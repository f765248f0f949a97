"""Keeps arguments of calls what the model wrote where transformers' parser, given their tools, would make others."""

from collections.abc import Mapping, Sequence
from typing import Any

# Beside one of these a mask lets space stand around a string that is written without quotes.
_BOUNDS = frozenset({"const", "enum", "format", "maxLength", "minLength", "pattern"})

Tool = Mapping[str, Any]


def casting_tools(tools: Sequence[Tool], *, in_json: bool) -> list[dict[str, Any]]:
    """Returns what the parser is told of tools: it makes "7" a number where that is what a tool takes. In JSON, which
    says itself what is a number, it is told of no argument that may be a string: "007" is one.
    """
    return [
        {"function": {"name": name, "parameters": {"properties": told}}}
        for name, properties in _properties(tools).items()
        if (told := {key: one for key, one in properties.items() if not (in_json and _takes_strings(one))})
    ]


class BoundedStrings:
    """Knows which arguments are strings of a certain form, which have no space around them."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._bounded = {
            name: {key for key, one in properties.items() if isinstance(one, Mapping) and _BOUNDS & one.keys()}
            for name, properties in _properties(tools).items()
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


def _properties(tools: Sequence[Tool]) -> dict[str, Mapping[str, Any]]:
    found = {}
    for tool in tools:
        properties = tool["function"].get("parameters", {}).get("properties")
        if isinstance(properties, Mapping):
            found[tool["function"]["name"]] = properties
    return found


def _takes_strings(schema: object) -> bool:
    if not isinstance(schema, Mapping):
        return False
    kinds, choices = schema.get("type"), [*_list(schema.get("anyOf")), *_list(schema.get("oneOf"))]
    return kinds == "string" or "string" in _list(kinds) or any(map(_takes_strings, choices))


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
