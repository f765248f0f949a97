"""Messages of a chat request."""

from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field

from router.openai.request_part import Empty, EmptyObject, RequestPart

MAX_MESSAGES = 4096
MAX_CONTENT_PARTS = 16_384
MAX_CALLS = 1024  # of one message

Role = Literal["system", "developer", "user", "assistant", "tool", "function"]


class TextPart(RequestPart):
    type: Literal["text"]
    text: str


class CalledFunction(RequestPart):
    """`parsed_arguments` is what the SDK's `parse` adds to a call: `arguments` once more."""

    name: str = Field(min_length=1, max_length=256)
    arguments: str
    parsed_arguments: Any = None


class AssistantToolCall(RequestPart):
    """`index` is what those who gather it from a stream leave in it."""

    id: str = Field(max_length=256)
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


class ChatMessage(RequestPart):
    role: Role
    content: str | Annotated[list[TextPart], Field(max_length=MAX_CONTENT_PARTS, fail_fast=True)] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: Annotated[list[AssistantToolCall], Field(max_length=MAX_CALLS, fail_fast=True)] | None = None
    function_call: CalledFunction | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None

    # What SDKs' own messages carry when they are sent back. OpenAI's `parse` adds `parsed`, the content once more;
    # LiteLLM what it did not know in the answer. A value in the others is not implemented.
    parsed: Any = None
    provider_specific_fields: Any = None
    annotations: Empty | None = None
    audio: EmptyObject | None = None

    @property
    def text(self) -> str:
        if self.content is None:
            return ""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)

    def for_template(self) -> dict[str, Any]:
        """Chat templates know `system` and `tool`, not their other names, and arguments as objects."""
        role = {"developer": "system", "function": "tool"}.get(self.role, self.role)
        message: dict[str, Any] = {"role": role, "content": self.text}
        if self.name is not None:
            message["name"] = self.name
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        thoughts = self.reasoning_content or self.reasoning
        if thoughts:
            message["reasoning_content"] = thoughts
        calls = [_call(call.function, call.id) for call in self.tool_calls or ()]
        if self.function_call is not None:
            calls.append(_call(self.function_call, self.function_call.name))
        if calls:
            message["tool_calls"] = calls
        return message


def _call(function: CalledFunction, call_id: str) -> dict[str, Any]:
    arguments: object = function.arguments
    try:
        decoded = msgspec.json.decode(function.arguments)
    except (ValueError, RecursionError):  # as the model said it
        decoded = None
    if isinstance(decoded, dict):
        arguments = decoded
    elif not function.arguments.strip():
        arguments = {}
    return {"id": call_id, "type": "function", "function": {"name": function.name, "arguments": arguments}}
