"""Items that a client sent, or that a conversation has, as the API lists them."""

import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from router.openai.chat import ChatMessage
from router.responses.input_items import InputItem, InputPart
from router.responses.response_items import message_item, reasoning_item, text_part

_DONE = "completed"
_PREFIXES: Mapping[str, str] = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}


def with_new_ids(items: str | Iterable[InputItem]) -> list[dict[str, Any]]:
    """Lists each under an id of its own, whatever the client called it."""
    if isinstance(items, str):
        items = [InputItem(content=items)] if items else []
    return [_listed(item, f"{_PREFIXES[item.type]}_{uuid.uuid4().hex}") for item in items]


def items_of_messages(response_id: str, messages: Iterable[ChatMessage]) -> list[dict[str, Any]]:
    """Lists what a response went by, under the same ids each time. A custom tool's call is the one that the model saw,
    of a function.
    """
    said = [item for message in messages for item in _items_of(message)]
    own = response_id.removeprefix("resp_")
    return [_listed(item, f"{_PREFIXES[item.type]}_{own}{number:04d}") for number, item in enumerate(said)]


def _items_of(message: ChatMessage) -> Iterator[InputItem]:
    match message.role:
        case "tool":
            yield InputItem("function_call_output", call_id=message.tool_call_id or "", output=message.text)
        case "assistant":
            if message.reasoning_content:
                thought = InputPart("reasoning_text", text=message.reasoning_content)
                yield InputItem("reasoning", content=[thought])
            calls = message.tool_calls or ()
            if message.text or not calls:
                yield InputItem(role="assistant", content=message.text)
            for call in calls:
                name, arguments = call.function.name, call.function.arguments
                yield InputItem("function_call", call_id=call.id, name=name, arguments=arguments)
        case "user" | "system" | "developer" as role:
            yield InputItem(role=role, content=message.text)


def _listed(item: InputItem, item_id: str) -> dict[str, Any]:
    head = {"id": item_id, "type": item.type, "status": _DONE}
    named = {"call_id": item.call_id, "name": item.name}
    if item.namespace is not None:
        named["namespace"] = item.namespace
    match item.type:
        case "reasoning":
            text = "".join(part.text for part in _parts(item.content))
            summary = [{"type": "summary_text", "text": part.text} for part in item.summary or ()]
            return {**reasoning_item(item_id, text or None, _DONE), "summary": summary}
        case "function_call":
            return {**head, **named, "arguments": item.passed}
        case "custom_tool_call":
            return {**head, **named, "input": item.input}
        case "function_call_output" | "custom_tool_call_output":
            output = item.output
            told: str | list[dict[str, str]] = item.found
            if isinstance(output, list):
                told = [{"type": "input_text", "text": part.shown} for part in output]
            return {**head, "call_id": item.call_id, "output": told}
    is_own = item.role == "assistant"
    content = [_part(part, is_own=is_own) for part in _parts(item.content)]
    return {**message_item(item_id, None, _DONE), "role": item.role, "content": content}


def _parts(content: str | list[InputPart] | None) -> list[InputPart]:
    if content is None:
        return []
    return [InputPart("input_text", text=content)] if isinstance(content, str) else content


def _part(part: InputPart, *, is_own: bool) -> dict[str, Any]:
    if part.type == "refusal":
        return {"type": "refusal", "refusal": part.refusal}
    return text_part(part.text) if is_own else {"type": "input_text", "text": part.text}
