"""Makes calls of tools of what a part of a reply says: names, and arguments in the types that the tools take."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from router.text.call_arguments import ToolArguments
from router.text.calls import CalledTool
from router.text.nested_values import NestedValues, json_or_text
from router.text.python_calls import python_calls

Cast = Callable[[str, dict[str, Any]], dict[str, Any]]
"""Makes "7" a number where that is what the tool of this name takes."""


class CallReader:
    """Knows the tools of one request. `in_json`: values are written so, and say of what type they are."""

    def __init__(self, tools: Sequence[Mapping[str, Any]], cast: Cast, *, in_json: bool) -> None:
        self._cast = cast
        self._in_json = in_json
        self._types = ToolArguments(tools)
        self._nested = NestedValues(tools)

    def calls(self, value: object) -> list[CalledTool]:
        """None where any is not a call."""
        found: list[CalledTool] = []
        for item in value if isinstance(value, list) else [value]:
            function = _function(item)
            for one in function if isinstance(function, list) else [function]:
                name = one.get("name", one.get("tool_name")) if isinstance(one, dict) else None
                if not isinstance(one, dict) or not isinstance(name, str):
                    return []
                found.append(CalledTool(_escaped(name.strip()), _escaped(self._arguments(name.strip(), one))))
        return found

    def _arguments(self, name: str, call: Mapping[str, Any]) -> str:
        """Returns JSON, as far as the model keeps to it."""
        arguments = call.get("arguments", call.get("parameters"))
        if isinstance(arguments, dict):
            arguments = self._cast(name, arguments)
        elif not self._in_json and "marked" in call:
            arguments = self._of_marked(name, call["marked"])
        elif not self._in_json and "nested" in call:
            arguments = self._nested.read(name, call["nested"])
        if arguments in (None, ""):  # so some models call what takes none
            arguments = {}
        if not self._in_json:
            arguments = self._types.trimmed(name, arguments)
        return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)

    def _of_marked(self, name: str, marked: Mapping[str, str]) -> dict[str, Any]:
        """Reads `KEY" string="false"` or `KEY" type="number"`: what is no text is JSON, if no schema says more."""
        arguments: dict[str, Any] = {}
        for said, value in marked.items():
            key, _, mark = said.partition('"')
            is_text = 'string="false"' not in mark and ("type=" not in mark or 'type="string"' in mark)
            arguments[key] = value if is_text or self._types.has_type(name, key) else json_or_text(value)
        return self._cast(name, arguments)


def _function(item: object) -> object:
    """Returns one call or several; of the forms that name them by keys, `{"NAME": ARGUMENTS}`, or as Python, too."""
    function = item.get("function", item) if isinstance(item, dict) else None
    if not isinstance(function, dict):
        return function
    if "as_python" in function:
        said = function["as_python"]
        return python_calls(said) if isinstance(said, str) else said  # LFM 2 may write them as JSON
    if "by_name" not in function:
        return function
    named = function["by_name"]
    if not isinstance(named, list) or not all(isinstance(one, dict) for one in named):
        return None
    return [{"name": name, "arguments": arguments} for one in named for name, arguments in one.items()]


def _escaped(text: str) -> str:
    """Half of a surrogate pair, which JSON can name and no text can hold, stays as JSON writes it."""
    return text.encode(errors="backslashreplace").decode()
