"""POST /v1/messages: the reply."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from pdmux_actor.messages import FinishReason
from router.errors import RouterError
from router.generation import Output, ToolCall
from router.openai.reply import Choice, ReplyHead, Usage

_encode: Callable[[object], bytes] = msgspec.json.Encoder().encode


class MessagesReply:
    """Implements ReplyFormat. Every event wants the usage."""

    def __init__(self, head: ReplyHead, *, with_thinking: bool) -> None:
        self._head = head
        self._with_thinking = with_thinking
        self._has_begun = False
        self._num_blocks = 0
        self._open: str | None = None  # kind of the block that is open
        self._num_calls = 0

    def events(self, index: int, output: Output, usage: Usage | None) -> bytes:
        assert usage is not None, "asked for with every event"
        if output.unshown_tokens and not (output.num_tokens or self._has_begun):
            return b""  # the first token that is there for good tells how much of the prompt was cached
        events = b"" if self._has_begun else self._begin(usage)
        if output.reasoning and self._with_thinking:
            events += self._delta("thinking", {"type": "thinking_delta", "thinking": output.reasoning})
        if output.text:
            events += self._delta("text", {"type": "text_delta", "text": output.text})
        for call in output.tool_calls:
            events += self._call(call)
        if output.finish is not None:
            events += self._close() + self._end(output.finish, output.stop, usage)
        return events

    def usage_event(self, usage: Usage) -> bytes:
        return _event({"type": "message_stop"})

    def failed_event(self, error: RouterError) -> bytes:
        return b""

    def document(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        (choice,) = choices
        assert choice.finish is not None, "a document is made of finished choices"
        content: list[dict[str, Any]] = []
        if choice.reasoning and self._with_thinking:
            content.append({"type": "thinking", "thinking": choice.reasoning, "signature": ""})
        if choice.text:
            content.append({"type": "text", "text": choice.text})
        content += [_tool_use(call) for call in choice.tool_calls]
        return _encode(self._message(content, usage, **_stop(choice.finish, choice.stop, len(choice.tool_calls))))

    def _begin(self, usage: Usage) -> bytes:
        self._has_begun = True
        return _event({"type": "message_start", "message": self._message([], usage)})

    def _delta(self, kind: str, delta: dict[str, str]) -> bytes:
        events = b""
        if self._open != kind:
            empty = {"type": "text", "text": ""} if kind == "text" else {"type": kind, kind: "", "signature": ""}
            events = self._close() + self._start(empty)
            self._open = kind
        return events + _event({"type": "content_block_delta", "index": self._num_blocks, "delta": delta})

    def _call(self, call: ToolCall) -> bytes:
        self._num_calls += 1
        events = self._close() + self._start({**_tool_use(call), "input": {}})
        self._open = "tool_use"
        delta = {"type": "input_json_delta", "partial_json": call.arguments}
        events += _event({"type": "content_block_delta", "index": self._num_blocks, "delta": delta})
        return events + self._close()

    def _start(self, block: dict[str, Any]) -> bytes:
        return _event({"type": "content_block_start", "index": self._num_blocks, "content_block": block})

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        event = _event({"type": "content_block_stop", "index": self._num_blocks})
        self._num_blocks += 1
        return event

    def _end(self, finish: FinishReason, stop: str, usage: Usage) -> bytes:
        delta = _stop(finish, stop, self._num_calls)
        return _event({"type": "message_delta", "delta": delta, "usage": _usage(usage)})

    def _message(
        self,
        content: list[dict[str, Any]],
        usage: Usage,
        *,
        stop_reason: str | None = None,
        stop_sequence: str | None = None,
    ) -> dict[str, Any]:
        return {
            "id": self._head.reply_id,
            "type": "message",
            "role": "assistant",
            "model": self._head.model,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": stop_sequence,
            "usage": _usage(usage),
        }


def _event(body: dict[str, Any]) -> bytes:
    name: str = body["type"]
    return b"event: " + name.encode() + b"\ndata: " + _encode(body) + b"\n\n"


def _usage(usage: Usage) -> dict[str, int]:
    """Anthropic counts tokens from the cache apart."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
    }


def _stop(finish: FinishReason, stop: str, num_calls: int) -> dict[str, str | None]:
    """Says why the message ended. A stop sequence behind calls is none of the client's interest: it acts on them."""
    if finish is FinishReason.LENGTH:
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if num_calls:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    return {"stop_reason": "stop_sequence" if stop else "end_turn", "stop_sequence": stop or None}


def _tool_use(call: ToolCall) -> dict[str, Any]:
    try:
        arguments = msgspec.json.decode(call.arguments)
    except (ValueError, RecursionError):
        arguments = None
    given = arguments if isinstance(arguments, dict) else {"arguments": call.arguments}
    return {"type": "tool_use", "id": call.call_id, "name": call.name, "input": given}
