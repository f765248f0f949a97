"""Output items of the Responses API, and the object around them."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from router.openai.reply import ReplyHead, Usage
from router.responses.responses_body import ResponsesBody, ResponseTool, TextForm, TextSettings

Logprobs = Sequence[dict[str, Any]]
_encode: Callable[[object], bytes] = msgspec.json.Encoder().encode


def event_of(kind: str, number: int, **body: Any) -> bytes:  # noqa: ANN401  (fields of any kind of event)
    event = {"type": kind, "sequence_number": number, **body}
    return b"event: " + kind.encode() + b"\ndata: " + _encode(event) + b"\n\n"


def text_part(text: str, logprobs: Logprobs = ()) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def message_item(item_id: str, text: str | None, status: str, logprobs: Logprobs = ()) -> dict[str, Any]:
    """The item of a message; without `text` it has no part yet."""
    content = [] if text is None else [text_part(text, logprobs)]
    return {"id": item_id, "type": "message", "role": "assistant", "status": status, "content": content}


def reasoning_item(item_id: str, text: str | None, status: str) -> dict[str, Any]:
    content = [] if text is None else [{"type": "reasoning_text", "text": text}]
    return {"id": item_id, "type": "reasoning", "status": status, "summary": [], "content": content}


def response_object(
    head: ReplyHead, body: ResponsesBody, status: str, output: list[dict[str, Any]], usage: Usage | None
) -> dict[str, Any]:
    tools = [told for tool in body.tools or () if (told := _tool(tool)) is not None]
    choice = "auto" if body.tool_choice is None else msgspec.to_builtins(body.tool_choice)
    return {
        **({} if head.service_tier is None else {"service_tier": head.service_tier}),
        "id": head.reply_id,
        "object": "response",
        "background": bool(body.background),
        "created_at": head.created_s,
        **({} if body.conversation_id is None else {"conversation": {"id": body.conversation_id}}),
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": body.instructions,
        "max_output_tokens": None if body.max_output_tokens is None else int(body.max_output_tokens),
        "metadata": body.metadata or {},
        "model": head.model,
        "output": output,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "store": body.store is not False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": _text_settings(body.text or TextSettings()),
        "tool_choice": choice,
        "tools": tools,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
        "usage": None if usage is None else _usage(usage),
    }


def _tool(tool: ResponseTool) -> dict[str, Any] | None:
    """None: the model is not told of it."""
    told = {"type": tool.type, "name": tool.name, "description": tool.description}
    match tool.type:
        case "function":
            return {**told, "parameters": tool.parameters, "strict": bool(tool.strict)}
        case "custom":
            return {**told, "format": tool.format or {"type": "text"}}
        case "namespace":
            return {**told, "tools": [one for inner in tool.tools or () if (one := _tool(inner)) is not None]}
    return None


def _text_settings(asked: TextSettings) -> dict[str, Any]:
    """As they hold: what was not asked for has the API's defaults."""
    form = asked.format or TextForm(type="text")
    said: dict[str, Any] = {"type": form.type}
    if form.type == "json_schema":
        said |= {"name": form.name, "description": form.description, "schema": form.schema or {}, "strict": form.strict}
    return {"format": said, "verbosity": asked.verbosity or "medium"}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
