"""A body of the Responses API as the chat request that it means."""

from collections.abc import Sequence
from typing import Any

from router.errors import InvalidRequest, UnsupportedParameter
from router.openai.chat import ChatCompletionRequest, ChatMessage
from router.openai.foreign_body import chat_request, message
from router.responses.client_tools import arguments_of, client_tools, name_in
from router.responses.input_items import InputItem, InputPart
from router.responses.responses_body import CUSTOM, LOGPROBS, AllowedTools, NamedCustomTool, NamedTool, ResponsesBody


def chat_of_responses(body: ResponsesBody, history: Sequence[ChatMessage]) -> ChatCompletionRequest:
    """`history` is what was said before this input. Raises InvalidRequest, UnsupportedParameter."""
    if body.background and body.store is False:
        raise InvalidRequest("A response in the background is kept: leave 'store' out, or true.", param="store")
    streams = body.stream or body.background
    absent = {"moderation": body.moderation, "prompt": body.prompt}
    for name in (name for name, value in absent.items() if value is not None):
        raise UnsupportedParameter(f"{name!r} is not implemented; leave it out.", param=name)
    tells_logprobs = LOGPROBS in (body.include or ())
    if body.top_logprobs and not tells_logprobs:
        message_ = f"'top_logprobs' are told where 'include' has {LOGPROBS!r}: add it, or leave them out."
        raise InvalidRequest(message_, param="top_logprobs")
    parameters: dict[str, Any] = {
        "model": body.model,
        "max_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "stream": streams,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True} if streams else None,
        "tools": [tool.function() for tool in client_tools(body)] or None,
        "tool_choice": _choice(body.tool_choice),
        "parallel_tool_calls": body.parallel_tool_calls,
        "reasoning_effort": None if body.reasoning is None else body.reasoning.effort,
        "response_format": _format(body),
        "logprobs": tells_logprobs or None,
        "top_logprobs": body.top_logprobs,
        "metadata": body.metadata,
        "service_tier": body.service_tier,
    }
    before = [message("system", body.instructions)] if body.instructions else []
    said = [*history, *messages_of(body.input)]
    if not said:
        raise InvalidRequest("The conversation has nothing to answer: send 'input'.", param="input")
    return chat_request(parameters, [*before, *said])


def messages_of(items: str | Sequence[InputItem]) -> list[ChatMessage]:
    """Returns what an input, or what was kept of a conversation, says."""
    if isinstance(items, str):
        return [message("user", items)] if items else []
    gathered = _Turns()
    for item in items:
        gathered.add(item)
    return gathered.ended()


class _Turns:
    """Reasoning, text and calls that follow each other, in any order, are one message of the assistant: templates want
    outputs right after their calls.
    """

    def __init__(self) -> None:
        self._messages: list[ChatMessage] = []
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[tuple[str, str, str]] = []

    def add(self, item: InputItem) -> None:
        match item.type:
            case "reasoning":
                self._reasoning.append(_text(item.content) or _text(item.summary))
            case "function_call":
                self._calls.append((item.call_id or "", name_in(item.namespace, item.name), item.passed))
            case "custom_tool_call":
                self._calls.append((item.call_id or "", name_in(item.namespace, item.name), arguments_of(item.input)))
            case "function_call_output" | "custom_tool_call_output":
                self._end()
                self._messages.append(message("tool", item.found, call_id=item.call_id or ""))
            case _ if item.role == "assistant":
                self._text.append(_text(item.content))
            case _:
                self._end()
                self._messages.append(message(item.role, _text(item.content)))

    def ended(self) -> list[ChatMessage]:
        self._end()
        return self._messages

    def _end(self) -> None:
        if self._text or self._calls or self._reasoning:
            thoughts = "\n".join(self._reasoning) or None
            said = message("assistant", "\n".join(self._text), calls=self._calls, reasoning=thoughts)
            self._messages.append(said)
        self._text, self._reasoning, self._calls = [], [], []


def _text(content: str | list[InputPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text or part.refusal for part in content)


def _choice(choice: str | NamedTool | NamedCustomTool | AllowedTools | None) -> str | dict[str, Any] | None:
    match choice:
        case NamedTool(name=name) | NamedCustomTool(name=name):
            return {"type": "function", "function": {"name": name}}
        case AllowedTools(mode=mode, tools=tools):
            allowed = [
                {"type": "function", "function": {"name": t.name}} for t in tools if t.type in ("function", CUSTOM)
            ]
            return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": allowed}}
    return choice


def _format(body: ResponsesBody) -> dict[str, Any] | None:
    form = body.text.format if body.text is not None else None
    if form is None:
        return None
    if form.type == "json_schema":
        named = {"name": form.name, "schema": form.schema or {}, "strict": form.strict}
        return {"type": "json_schema", "json_schema": named}
    return {"type": form.type}
