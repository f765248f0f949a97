"""Ids of calls as Kimi K2 gives them: its chat template shows them to the model in the place of names."""

from collections.abc import Mapping, Sequence
from typing import Any


def with_kimi_ids(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Numbers calls through all messages, `functions.NAME:0`, and has results refer to them."""
    named: dict[str, str] = {}
    count = 0
    told: list[Mapping[str, Any]] = []
    for message in messages:
        calls = []
        for call in message.get("tool_calls") or ():
            named[call["id"]] = f"functions.{call['function']['name']}:{count}"
            calls.append({**call, "id": named[call["id"]]})
            count += 1
        if calls:
            message = {**message, "tool_calls": calls}
        elif message.get("tool_call_id") in named:
            message = {**message, "tool_call_id": named[message["tool_call_id"]]}
        told.append(message)
    return told
