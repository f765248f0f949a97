"""POST /v1/messages and /v1/messages/count_tokens: the body, read into fixed types in a time that its bytes bound."""

from typing import Any, ClassVar, Literal

import msgspec

from router.anthropic.server_blocks import ServerBlock

MAX_BLOCKS = 16_384


class TextBlock(msgspec.Struct, tag="text", gc=False):
    text: str


class ThinkingBlock(msgspec.Struct, tag="thinking", gc=False):
    thinking: str
    signature: str = ""


class RedactedThinkingBlock(msgspec.Struct, tag="redacted_thinking", gc=False):
    data: str


class ToolUseBlock(msgspec.Struct, tag="tool_use", gc=False):
    id: str
    name: str
    input: dict[str, Any]


class ImageOfTool(msgspec.Struct, tag="image", gc=False):
    """Stands in what a tool found, which is no choice of the client's: refused, it would end the conversation."""

    text: ClassVar[str] = "[an image, left out: this model reads text only]"


class DocumentOfTool(msgspec.Struct, tag="document", gc=False):
    text: ClassVar[str] = "[a document, left out: this model reads text only]"


class FoundText(msgspec.Struct, tag="search_result", gc=False):
    """Is what a tool found, or the client by itself."""

    content: list[TextBlock]
    title: str = ""
    source: str = ""

    @property
    def text(self) -> str:
        return "\n".join([self.title, self.source, *(block.text for block in self.content)])


class ReferenceOfTool(msgspec.Struct, tag="tool_reference", gc=False):
    tool_name: str

    @property
    def text(self) -> str:
        return self.tool_name


class ToolResultBlock(msgspec.Struct, tag="tool_result", gc=False):
    tool_use_id: str
    content: str | list[TextBlock | ImageOfTool | DocumentOfTool | FoundText | ReferenceOfTool] | None = None
    is_error: bool | None = None


Block = TextBlock | FoundText | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock | ServerBlock


class TurnOfMessages(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class DeclaredTool(msgspec.Struct):
    """Others than `custom` are run by Anthropic."""

    name: str
    input_schema: dict[str, Any] | None = None
    description: str | None = None
    type: str | None = None
    strict: bool | None = None


class ChosenTool(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | float | None = None


class OutputFormat(msgspec.Struct):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputSettings(msgspec.Struct):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class MessagesBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    model: str
    messages: list[TurnOfMessages]
    max_tokens: int | float | None = None  # JSON Schema's integers: 16.0 is one
    system: str | list[TextBlock] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    tools: list[DeclaredTool] | None = None
    tool_choice: ChosenTool | None = None
    thinking: Thinking | None = None
    output_config: OutputSettings | None = None

    thread: Any = None  # a conversation that Anthropic keeps: refused

    # Accepted and without effect here.
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    cache_control: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    container: str | None = None
    diagnostics: dict[str, Any] | None = None
    speed: Literal["standard", "fast"] | None = None
    user_profile_id: str | None = None
    inference_geo: str | None = None
    fallbacks: Any = None  # what is asked where a model declines for Anthropic's policies: none does here
    fallback_credit_token: str | None = None
    billing_policy: dict[str, Any] | None = None
