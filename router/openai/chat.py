"""POST /v1/chat/completions: the request and its messages."""

from functools import cached_property
from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field

from pdmux_actor.messages import StructuredOutput
from router.errors import InvalidRequest, UnsupportedParameter
from router.openai.parameters import MAX_LOGPROBS, GenerationParameters, Tokens
from router.openai.peer_parameters import InertChatParameters, RefusedChatParameters
from router.openai.request_part import Empty, EmptyObject, Integer, RequestPart
from router.openai.tools import (
    NO_TOOLS,
    FunctionName,
    Functions,
    FunctionTool,
    NamedFunction,
    ToolChoice,
    Tools,
    ToolUse,
    tool_use,
)

MAX_MESSAGES = 4096
MAX_CONTENT_PARTS = 16_384
MAX_CALLS = 1024  # of one message
EMPTY_IN_MESSAGES = ("annotations", "audio")  # what SDKs send back, and nothing else

Role = Literal["system", "developer", "user", "assistant", "tool", "function"]


class TextPart(RequestPart):
    """`prompt_cache_breakpoint` and `cache_control` (Anthropic's, which Roo Code and LiteLLM send) are without effect:
    any prefix is cached. The others are what the Agents SDK for JavaScript spreads over the part that it makes of an
    assistant's text: fields of the message, which has them, too.
    """

    type: Literal["text"]
    text: str
    prompt_cache_breakpoint: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None
    role: Any = None
    refusal: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    tool_calls: Any = None
    function_call: Any = None
    annotations: Any = None


class RefusalPart(RequestPart):
    """Holds what the assistant said where it would not."""

    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        return self.refusal


ContentPart = Annotated[TextPart | RefusalPart, Field(discriminator="type")]


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
    content: str | Annotated[list[ContentPart], Field(max_length=MAX_CONTENT_PARTS, fail_fast=True)] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: Annotated[list[AssistantToolCall], Field(max_length=MAX_CALLS, fail_fast=True)] | None = None
    function_call: CalledFunction | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None

    # What SDKs' own messages carry when they are sent back. OpenAI's `parse` adds `parsed`, the content once more;
    # LiteLLM what it did not know in the answer and, for Claude Code, thoughts in Anthropic's form; whoever speaks with
    # OpenRouter, too, has them in its own. `cache_control` is as in a part. A value in the others is not implemented.
    parsed: Any = None
    provider_specific_fields: Any = None
    thinking_blocks: Any = None
    reasoning_details: Any = None
    cache_control: dict[str, Any] | None = None
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


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ReasoningWish(RequestPart):
    """OpenRouter's way to say `reasoning_effort`, `include_reasoning` and `thinking_token_budget`, which count before
    it.
    """

    effort: Effort | None = None
    enabled: bool | None = None
    exclude: bool | None = None
    max_tokens: Annotated[Integer, Field(ge=0, le=2**31)] | None = None


class ChatCompletionRequest(GenerationParameters, InertChatParameters, RefusedChatParameters):
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[Integer, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Functions | None = None
    function_call: Literal["none", "auto"] | FunctionName | None = None
    reasoning_effort: Effort | None = None
    include_reasoning: bool | None = None
    reasoning: ReasoningWish | None = None
    thinking_token_budget: Annotated[Integer, Field(ge=-1, le=2**31)] | None = None  # -1: none
    documents: list[dict[str, Any]] | None = None

    # vLLM's: the reply goes on from the last message, which is the assistant's.
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None

    # Accepted and without effect here.
    prediction: dict[str, Any] | None = None

    # See UNIMPLEMENTED.
    modalities: Annotated[list[Literal["text"]], Field(max_length=1)] | None = None
    audio: EmptyObject | None = None
    moderation: EmptyObject | None = None
    verbosity: Literal["medium"] | None = None
    web_search_options: EmptyObject | None = None

    @property
    def asked_effort(self) -> Effort | None:
        if self.reasoning_effort is not None or self.reasoning is None:
            return self.reasoning_effort
        return "none" if self.reasoning.enabled is False else self.reasoning.effort

    @property
    def shows_reasoning(self) -> bool:
        if self.include_reasoning is not None or self.reasoning is None:
            return self.include_reasoning is not False
        return not self.reasoning.exclude

    @property
    def asked_thinking_tokens(self) -> int | None:
        """Returns how many tokens thoughts may have; None: any number."""
        if self.thinking_token_budget is not None:
            return None if self.thinking_token_budget < 0 else self.thinking_token_budget
        return None if self.reasoning is None else self.reasoning.max_tokens

    @property
    def template_arguments(self) -> dict[str, Any]:
        documents = {} if not self.documents else {"documents": self.documents}
        return {**documents, **(self.chat_template_kwargs or {})}

    @property
    def asked_max_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def asked_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    def _form(self) -> StructuredOutput | None:
        """A call that it must make is stricter than the format of its answer."""
        return self.tool_use.forced_output() if self.tool_use.must_call else super()._form()

    @property
    def max_calls(self) -> int | None:
        return self.tool_use.max_calls

    def check(self) -> None:
        """Raises InvalidRequest: parameters do not fit together."""
        if self.top_logprobs and not self.logprobs:
            message = "'top_logprobs' are told with 'logprobs' only: set 'logprobs' to true, or leave it out."
            raise InvalidRequest(message, param="top_logprobs")
        self._check_continuation()

    def _check_continuation(self) -> None:
        """Raises InvalidRequest: a last message is to be continued that cannot be, or none, without a new one begun."""
        if not self.continue_final_message:
            if self.add_generation_prompt is False:
                message = "'add_generation_prompt' can be false only with 'continue_final_message'; leave it out."
                raise UnsupportedParameter(message, param="add_generation_prompt")
            return
        if self.add_generation_prompt:
            raise two_ends()
        check_can_go_on(self.messages[-1])
        if (form := self.structured_output) is not None:
            message = f"{form.param!r} is for a whole answer: leave it out, or the last message, the assistant's."
            raise InvalidRequest(message, param=form.param)

    @cached_property
    def tool_use(self) -> ToolUse:
        """Returns what the reply may call. Raises as `tool_use` of tools.py."""
        if self.tools is None and self.functions is None and self.tool_choice is None:
            return NO_TOOLS
        if self.functions is not None and not self.tools:
            tools = [FunctionTool(type="function", function=function) for function in self.functions]
            choice: ToolChoice | None
            if isinstance(self.function_call, FunctionName):
                choice = NamedFunction(type="function", function=self.function_call)
            else:
                choice = self.function_call
            return tool_use(tools, choice, parallel=False, is_legacy=True)
        return tool_use(self.tools or [], self.tool_choice, parallel=self.parallel_tool_calls)


def check_can_go_on(last: ChatMessage) -> None:
    """Raises InvalidRequest: a reply cannot go on from this message."""
    if last.role != "assistant" or not last.text or last.tool_calls or last.function_call:
        message = "Only a last message of the assistant's with text, and without calls, can be continued."
        raise InvalidRequest(message, param="messages")


def two_ends() -> InvalidRequest:
    """Builds the error for a prompt that shall end in its last message, and in the start of another one."""
    message = "'continue_final_message' and 'add_generation_prompt' exclude each other; leave one out."
    return InvalidRequest(message, param="add_generation_prompt")


def unsupported_value(param: str) -> UnsupportedParameter:
    """Builds the error for a field of a message that must be empty."""
    return UnsupportedParameter(f"{param!r} with a value in it is not implemented; leave it out.", param=param)


def unsupported_kind(param: str) -> UnsupportedParameter:
    """Builds the error for a content part that is no text (an image, audio, a file), or a tool, or a call of one, that
    is no function.
    """
    if "tool" in param:
        message = f"{param!r} is no function: this API takes tools, and calls of them, of type 'function' only."
    else:
        message = f"{param!r} is not text: this API takes content parts of type 'text' only; leave it out."
    return UnsupportedParameter(message, param=param)
