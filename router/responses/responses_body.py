"""POST /v1/responses: the body, read into fixed types in a time that its bytes bound."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from router.errors import InvalidRequest
from router.openai.chat import MAX_CONTENT_PARTS, MAX_MESSAGES
from router.openai.foreign_body import decoded
from router.responses.input_items import InputItem, told_items

CUSTOM = "custom"
NAMESPACE = "namespace"
LOGPROBS = "message.output_text.logprobs"

# What may be asked for beside the answer. Of images, encrypted reasoning and tools that OpenAI runs there is nothing.
Included = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
]


class ResponseTool(msgspec.Struct):
    """Others than functions and custom tools are run by OpenAI, but for a namespace of such, its `tools`. `format` is
    that of a custom tool's input.
    """

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: dict[str, Any] | None = None
    tools: list["ResponseTool"] | None = None


class NamedTool(msgspec.Struct, tag="function"):
    name: str


class NamedCustomTool(msgspec.Struct, tag=CUSTOM):
    name: str


class AllowedTool(msgspec.Struct, omit_defaults=True):
    type: str
    name: str = ""


class AllowedTools(msgspec.Struct, tag="allowed_tools"):
    """Chooses among the tools that there are."""

    mode: Literal["auto", "required"]
    tools: list[AllowedTool]


class TextForm(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["text", "json_object", "json_schema"]
    name: str = "answer"
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextSettings(msgspec.Struct, forbid_unknown_fields=True):
    """`verbosity` is a wish that models here know no way to be told: accepted, since Codex sends it, and echoed."""

    format: TextForm | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningSettings(msgspec.Struct):
    effort: str | None = None


class NamedConversation(msgspec.Struct):
    id: str


class ResponsesBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    model: str
    input: str | list[InputItem] = ""
    instructions: str | None = None
    max_output_tokens: int | float | None = None  # JSON Schema's integers: 16.0 is one
    temperature: float | None = None
    top_p: float | None = None
    stream: bool | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | NamedCustomTool | AllowedTools | None = None
    parallel_tool_calls: bool | None = None
    text: TextSettings | None = None
    reasoning: ReasoningSettings | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    metadata: dict[str, str] | None = None
    service_tier: str | None = None
    include: list[Included] | None = None
    top_logprobs: int | None = None

    conversation: str | NamedConversation | None = None

    background: bool | None = None

    # Nothing of it is here: a value is refused.
    moderation: Any = None
    prompt: Any = None

    # Accepted and without effect here.
    access_programs: dict[str, Any] | None = None
    client_metadata: dict[str, Any] | None = None
    context_management: list[dict[str, Any]] | None = None
    image: dict[str, Any] | None = None
    max_tool_calls: int | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    stream_options: dict[str, Any] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    user: str | None = None

    @property
    def conversation_id(self) -> str | None:
        return self.conversation.id if isinstance(self.conversation, NamedConversation) else self.conversation


def read_responses_body(body: bytes) -> ResponsesBody:
    """Raises InvalidRequest."""
    read = decoded(body, ResponsesBody)
    items = [] if isinstance(read.input, str) else read.input
    if items:
        read.tools = _with_additional(read.tools, items)
        read.input = told_items(items)
    goes_on = read.previous_response_id is not None or read.conversation is not None
    if not (read.input or goes_on) or len(items) > MAX_MESSAGES:
        message = f"'input' must be text that is not empty, or a list of 1 to {MAX_MESSAGES} items."
        raise InvalidRequest(message, param="input")
    parts = sum(len(one) for i in items for one in (i.content, i.output, i.summary) if isinstance(one, list))
    if parts > MAX_CONTENT_PARTS:
        raise InvalidRequest(f"The input has {parts} parts; it may have {MAX_CONTENT_PARTS}.", param="input")
    return read


def _with_additional(tools: list[ResponseTool] | None, items: Sequence[InputItem]) -> list[ResponseTool] | None:
    """Returns the tools with those that came with the input, as `additional_tools`: of one name the last holds. Raises
    InvalidRequest.
    """
    added: list[ResponseTool] = []
    for place, item in enumerate(items):
        if item.type == "additional_tools":
            try:
                added += msgspec.convert(item.tools, list[ResponseTool])
            except msgspec.ValidationError as error:
                where = f"input[{place}].tools"
                raise InvalidRequest(f"Invalid value for {where!r}: {error}.", param=where) from error
    return list({(tool.type, tool.name): tool for tool in (*(tools or ()), *added)}.values()) if added else tools
