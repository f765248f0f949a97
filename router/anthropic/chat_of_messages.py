"""A body of Anthropic's Messages API as the chat request that it means."""

from collections.abc import Iterator
from typing import Any

import msgspec

from router.anthropic.messages_body import (
    MAX_BLOCKS,
    ChosenTool,
    DeclaredTool,
    FoundText,
    MessagesBody,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    TurnOfMessages,
)
from router.errors import InvalidRequest, ThreadsUnsupported, UnsupportedParameter
from router.openai.chat import MAX_MESSAGES, ChatCompletionRequest, ChatMessage
from router.openai.foreign_body import chat_request, decoded, message


def read_messages_body(body: bytes) -> MessagesBody:
    """Raises InvalidRequest."""
    read = decoded(body, MessagesBody)
    blocks = sum(len(turn.content) for turn in read.messages if isinstance(turn.content, list))
    if blocks > MAX_BLOCKS:
        raise InvalidRequest(f"The messages have {blocks} blocks; a request may have {MAX_BLOCKS}.", param="messages")
    if len(read.messages) > MAX_MESSAGES:
        message_ = f"'messages' has {len(read.messages)} entries; a request may have {MAX_MESSAGES}."
        raise InvalidRequest(message_, param="messages")
    return read


def chat_of_messages(body: MessagesBody) -> ChatCompletionRequest:
    """Raises InvalidRequest, UnsupportedParameter, ThreadsUnsupported."""
    if body.thread is not None:
        raise ThreadsUnsupported
    if not body.messages:
        raise InvalidRequest("'messages' is empty: it must have one entry or more.", param="messages")
    messages = list(_messages(body))
    thinks = body.thinking is not None and body.thinking.type != "disabled"
    effort = body.output_config.effort if body.output_config is not None else None
    form = body.output_config.format if body.output_config is not None else None
    parameters: dict[str, Any] = {
        "model": body.model,
        "max_tokens": body.max_tokens,
        "stop": body.stop_sequences or None,
        "stream": body.stream,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "tools": [_tool(place, tool) for place, tool in enumerate(body.tools or ())] or None,
        **_choice(body.tool_choice),
        "reasoning_effort": (effort or "high") if thinks else "none",
        "include_reasoning": thinks,
        "thinking_token_budget": body.thinking.budget_tokens if thinks and body.thinking is not None else None,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True} if body.stream else None,
        "continue_final_message": _goes_on(messages, thinks=thinks) or None,
        "response_format": form and {"type": "json_schema", "json_schema": {"name": "answer", "schema": form.schema}},
    }
    return chat_request(parameters, messages)


def _goes_on(messages: list[ChatMessage], *, thinks: bool) -> bool:
    """Says whether the answer goes on from a last message of the assistant's; an empty one is taken away. Refused as
    Anthropic does. Raises InvalidRequest.
    """
    last = messages[-1]
    if last.role != "assistant":
        return False
    if not (last.text or last.tool_calls) and len(messages) > 1:
        messages.pop()
        return False
    if thinks:
        raise InvalidRequest("A last message of the assistant's is not continued with thinking.", param="messages")
    if last.text != last.text.rstrip():
        raise InvalidRequest(
            "The last message, the assistant's, cannot end with trailing whitespace.", param="messages"
        )
    return True


def _messages(body: MessagesBody) -> Iterator[ChatMessage]:
    if body.system:
        yield message("system", body.system if isinstance(body.system, str) else _text(body.system))
    for turn in body.messages:
        if isinstance(turn.content, str):
            yield message(turn.role, turn.content)
        elif turn.role == "assistant":
            yield _said(turn)
        else:
            yield from _heard(turn)


def _said(turn: TurnOfMessages) -> ChatMessage:
    blocks = turn.content if isinstance(turn.content, list) else []
    calls = [
        (block.id, block.name, msgspec.json.encode(block.input).decode())
        for block in blocks
        if isinstance(block, ToolUseBlock)
    ]
    thoughts = "".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock))
    return message("assistant", _text(blocks), calls=calls, reasoning=thoughts or None)


def _heard(turn: TurnOfMessages) -> Iterator[ChatMessage]:
    """Results of tools go before what the user says to them."""
    blocks = turn.content if isinstance(turn.content, list) else []
    for block in blocks:
        if isinstance(block, ToolResultBlock):
            found = block.content or ""
            content = found if isinstance(found, str) else "\n".join(part.text for part in found)
            text = f"Error: {content}" if block.is_error else content
            yield message("tool", text, call_id=block.tool_use_id)
    text = _text(blocks)
    if text or not any(isinstance(block, ToolResultBlock) for block in blocks):
        yield message(turn.role, text)


def _text(blocks: Any) -> str:  # noqa: ANN401  (lists are invariant: of any kinds of blocks)
    return "\n".join(block.text for block in blocks if isinstance(block, TextBlock | FoundText))


def _tool(place: int, tool: DeclaredTool) -> dict[str, Any]:
    if tool.type not in (None, "custom") or tool.input_schema is None:
        param = f"tools[{place}].type"
        raise UnsupportedParameter(f"{param!r}: tools that Anthropic runs are not here; leave it out.", param=param)
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", "function": {**function, "strict": tool.strict}}


def _choice(choice: ChosenTool | None) -> dict[str, Any]:
    if choice is None:
        return {}
    parallel = {"parallel_tool_calls": False} if choice.disable_parallel_tool_use else {}
    match choice.type:
        case "tool":
            return {"tool_choice": {"type": "function", "function": {"name": choice.name or ""}}, **parallel}
        case "any":
            return {"tool_choice": "required", **parallel}
        case other:
            return {"tool_choice": other, **parallel}
