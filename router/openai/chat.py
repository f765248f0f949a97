"""POST /v1/chat/completions: the request."""

from typing import Annotated, Any, Literal

from pydantic import Field

from router.errors import UnsupportedParameter
from router.openai.parameters import (
    MAX_LOGPROBS,
    Empty,
    EmptyObject,
    GenerationParameters,
    Integer,
    RequestPart,
    Tokens,
)

MAX_MESSAGES = 4096
MAX_CONTENT_PARTS = 16_384


class TextPart(RequestPart):
    type: Literal["text"]
    text: str


class ChatMessage(RequestPart):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], Field(max_length=MAX_CONTENT_PARTS, fail_fast=True)] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    refusal: str | None = None

    # What the SDK's own messages carry when they are sent back; a value in them is not implemented.
    tool_calls: Empty | None = None
    annotations: Empty | None = None
    audio: EmptyObject | None = None
    function_call: EmptyObject | None = None

    @property
    def text(self) -> str:
        if self.content is None:
            return ""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)

    def for_template(self) -> dict[str, str]:
        """Chat templates know `system`, not its newer name."""
        message = {"role": "system" if self.role == "developer" else self.role, "content": self.text}
        if self.name is not None:
            message["name"] = self.name
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


class ChatCompletionRequest(GenerationParameters):
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[Integer, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    # Accepted and without effect here.
    parallel_tool_calls: bool | None = None
    prediction: dict[str, Any] | None = None

    # See UNIMPLEMENTED.
    tools: Empty | None = None
    tool_choice: Literal["none", "auto"] | None = None
    functions: Empty | None = None
    function_call: Literal["none", "auto"] | None = None
    modalities: Annotated[list[Literal["text"]], Field(max_length=1)] | None = None
    audio: EmptyObject | None = None
    moderation: EmptyObject | None = None
    reasoning_effort: Literal["none"] | None = None
    verbosity: Literal["medium"] | None = None
    web_search_options: EmptyObject | None = None

    @property
    def asked_max_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def asked_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


def unsupported_part(param: str) -> UnsupportedParameter:
    """For a content part that is no text: an image, audio, a file."""
    message = f"{param!r} is not text: this API takes content parts of type 'text' only; leave it out."
    return UnsupportedParameter(message, param=param)
