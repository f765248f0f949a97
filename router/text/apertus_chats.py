"""Chats as Apertus' template reads them: github.com/swiss-ai/apertus_format, src/templates/chat_template.jinja."""

import json
from collections.abc import Mapping, Sequence
from typing import Any


def functions_of(tools: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the functions of the tools, each with a description: it joins that to text."""
    return [{"description": "", **tool["function"]} for tool in tools]


def with_apertus_calls(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Gives calls their arguments as text, and the assistant's messages a content: it refuses one without."""
    told: list[Mapping[str, Any]] = []
    for message in messages:
        if message["role"] == "assistant":
            calls = [
                {**call, "function": {**call["function"], "arguments": _text(call["function"]["arguments"])}}
                for call in message.get("tool_calls") or ()
            ]
            message = {**message, "content": message.get("content") or "", **({"tool_calls": calls} if calls else {})}
        told.append(message)
    return told


def _text(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
