"""Tools of the Responses API that the client runs, as the functions that the chat knows.

A custom tool, whose input is any text, is a function of one string. One of a namespace has both names in one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from router.generation import ToolCall
from router.responses.responses_body import CUSTOM, NAMESPACE, ResponsesBody, ResponseTool

_INPUT = "input"
_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {_INPUT: {"type": "string"}}, "required": [_INPUT]}


class _Arguments(msgspec.Struct):
    input: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTool:
    """`name` is what the model calls; `place` is that of `tool` in the request."""

    name: str
    tool: ResponseTool
    place: str
    namespace: str | None = None

    @property
    def is_custom(self) -> bool:
        return self.tool.type == CUSTOM

    def function(self) -> dict[str, Any]:
        """Builds the chat's tool. The model is told of a grammar in words: outputs are not held to it."""
        tool = self.tool
        function = {"name": self.name, "description": tool.description, "parameters": tool.parameters}
        if not self.is_custom:
            return {"type": "function", "function": {**function, "strict": tool.strict}}
        said = [tool.description] if tool.description else []
        form = tool.format or {}
        if form.get("type") == "grammar":
            said.append(f"The input follows this grammar ({form.get('syntax')}):\n{form.get('definition')}")
        described = {"description": "\n\n".join(said) or None, "parameters": _PARAMETERS}
        return {"type": "function", "function": {**function, **described}}


def client_tools(body: ResponsesBody) -> Iterator[ClientTool]:
    """Yields them in the order of the request. Others are OpenAI's own."""
    for number, tool in enumerate(body.tools or ()):
        place = f"tools[{number}]"
        if _is_called(tool):
            yield ClientTool(name=tool.name or "", tool=tool, place=place)
        elif tool.type == NAMESPACE:
            for nth, inner in enumerate(tool.tools or ()):
                if _is_called(inner):
                    name = name_in(tool.name, inner.name or "")
                    yield ClientTool(name=name, tool=inner, place=f"{place}.tools[{nth}]", namespace=tool.name)


def name_in(namespace: str | None, name: str) -> str:
    """Returns the one name that the model knows. MCP's namespaces end as it needs it: `mcp__files__`."""
    if not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def arguments_of(text: str) -> str:
    """Says the input of a custom tool as its function's arguments."""
    return msgspec.json.encode({_INPUT: text}).decode()


def call_item(item_id: str, call: ToolCall, called: Mapping[str, ClientTool], status: str) -> dict[str, Any]:
    """Builds the item of a call. What the model passed to a custom tool in another way than it should is its input."""
    tool = called.get(call.name)
    item = {"id": item_id, "type": "function_call", "status": status, "call_id": call.call_id, "name": call.name}
    if tool is None:
        return {**item, "arguments": call.arguments}
    named = {"name": tool.tool.name, **({} if tool.namespace is None else {"namespace": tool.namespace})}
    if tool.is_custom:
        return {**item, **named, "type": "custom_tool_call", "input": _input_of(call.arguments)}
    return {**item, **named, "arguments": call.arguments}


def _input_of(arguments: str) -> str:
    try:
        return msgspec.json.decode(arguments, type=_Arguments).input
    except (ValueError, RecursionError):
        return arguments


def _is_called(tool: ResponseTool) -> bool:
    return tool.type in ("function", CUSTOM)
