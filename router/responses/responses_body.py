"""POST /v1/responses: the body, read into fixed types in a time that its bytes bound."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import msgspec

from router.errors import InvalidRequest
from router.openai.chat import MAX_CONTENT_PARTS, MAX_MESSAGES
from router.openai.foreign_body import decoded

REFERENCE = "item_reference"
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


class InputPart(msgspec.Struct, gc=False):
    type: Literal["input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal"]
    text: str = ""
    refusal: str = ""


class OutputPart(msgspec.Struct, gc=False):
    """Holds some of what a tool found. An image there is no choice of the client's: refused, it would end the
    conversation.
    """

    type: Literal["input_text", "output_text", "text", "input_image", "input_file"]
    text: str = ""

    @property
    def shown(self) -> str:
        match self.type:
            case "input_image":
                return "[an image, left out: this model reads text only]"
            case "input_file":
                return "[a file, left out: this model reads text only]"
        return self.text


ItemType = Literal[
    "message",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "reasoning",
]
# Of tools that OpenAI runs: in a conversation that began there, and left out as its tools are.
_OfOpenAI = Literal[
    "web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_list_tools"
]
_OF_OPENAI = frozenset(get_args(_OfOpenAI))


class InputItem(msgspec.Struct, gc=False):
    """A message, a call of a tool, its output, reasoning, or a reference to one that was answered before, by its `id`;
    each uses some of the fields.
    """

    type: Literal[ItemType, _OfOpenAI, "item_reference"] = "message"
    id: str | None = None
    role: Literal["user", "assistant", "system", "developer"] = "user"
    content: str | list[InputPart] | None = None
    summary: list[InputPart] | None = None
    call_id: str = ""
    name: str = ""
    namespace: str | None = None
    arguments: str = ""
    input: str = ""
    output: str | list[OutputPart] = ""


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
        read.input = told_items(items)
    goes_on = read.previous_response_id is not None or read.conversation is not None
    if not (read.input or goes_on) or len(items) > MAX_MESSAGES:
        message = f"'input' must be text that is not empty, or a list of 1 to {MAX_MESSAGES} items."
        raise InvalidRequest(message, param="input")
    parts = sum(len(one) for i in items for one in (i.content, i.output, i.summary) if isinstance(one, list))
    if parts > MAX_CONTENT_PARTS:
        raise InvalidRequest(f"The input has {parts} parts; it may have {MAX_CONTENT_PARTS}.", param="input")
    return read


def told_items(items: Sequence[InputItem]) -> list[InputItem]:
    """Leaves out calls of tools that OpenAI runs."""
    return [item for item in items if item.type not in _OF_OPENAI]
