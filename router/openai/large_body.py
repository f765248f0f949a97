"""Bodies of many bytes, read in a time that their bytes bound: pydantic looks at the parameters only, which are small.

Messages and prompts are decoded into fixed types, which ends at the first thing that is wrong, and counted before
anything is made of them; pydantic would look at every one of a million faults.
"""

import gc
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NoReturn, TypeVar

import msgspec
from pydantic import BaseModel

from router.errors import InvalidRequest
from router.openai.chat import (
    EMPTY_IN_MESSAGES,
    MAX_CALLS,
    MAX_CONTENT_PARTS,
    MAX_MESSAGES,
    AssistantToolCall,
    CalledFunction,
    ChatMessage,
    unsupported_kind,
    unsupported_value,
)
from router.openai.nearest_name import did_you_mean

MAX_PARAMETER_BYTES = 256 * 1024
MAX_TOOL_BYTES = 2 * 1024 * 1024
MAX_PROMPTS = 4096
MAX_TOKEN_IDS = 1 << 20
_MAX_EXTRA_BYTES = 64  # of a message's fields that must be empty
_NOTHING = msgspec.Raw(b"null")
_PROMPT_FIELDS: Mapping[str, Any] = {"messages": [{"role": "user"}], "prompt": "x"}  # what stands for them meanwhile
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*?)`", re.DOTALL)
_PLACE = re.compile(r" - at `\$(.*?)`$", re.DOTALL)

ValueT = TypeVar("ValueT")


class _Part(msgspec.Struct, tag="text", tag_field="type", forbid_unknown_fields=True, gc=False):
    text: str
    prompt_cache_breakpoint: msgspec.Raw = _NOTHING
    cache_control: msgspec.Raw = _NOTHING
    role: msgspec.Raw = _NOTHING
    refusal: msgspec.Raw = _NOTHING
    reasoning: msgspec.Raw = _NOTHING
    reasoning_content: msgspec.Raw = _NOTHING
    tool_calls: msgspec.Raw = _NOTHING
    function_call: msgspec.Raw = _NOTHING
    annotations: msgspec.Raw = _NOTHING


class _Refusal(msgspec.Struct, tag="refusal", tag_field="type", forbid_unknown_fields=True, gc=False):
    refusal: str


class _Function(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    name: str
    arguments: str
    parsed_arguments: msgspec.Raw = _NOTHING


class _Call(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    id: str
    function: _Function
    type: Literal["function"] = "function"
    index: int | None = None


class _Message(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[_Part | _Refusal] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[_Call] | None = None
    function_call: _Function | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    parsed: msgspec.Raw = _NOTHING
    provider_specific_fields: msgspec.Raw = _NOTHING
    thinking_blocks: msgspec.Raw = _NOTHING
    reasoning_details: msgspec.Raw = _NOTHING
    cache_control: msgspec.Raw = _NOTHING
    annotations: msgspec.Raw = _NOTHING
    audio: msgspec.Raw = _NOTHING


_TOOLS = ("tools", "functions")


def parameters_and_prompt(body: bytes, schema: type[BaseModel]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A document for `schema` with something small in the place of messages or prompt, and what belongs there.

    Raises:
        InvalidRequest
        msgspec.DecodeError, RecursionError: not JSON.
    """
    with _without_cycles():
        raws = _fields(body, schema)
        prompt = {name: _prompt_field(name, raws.pop(name)) for name in _PROMPT_FIELDS if name in raws}
    _check_bytes({name: raw for name, raw in raws.items() if name in _TOOLS}, MAX_TOOL_BYTES)
    _check_bytes({name: raw for name, raw in raws.items() if name not in _TOOLS}, MAX_PARAMETER_BYTES)
    document = {name: msgspec.json.decode(raw) for name, raw in raws.items()}
    return document | {name: _PROMPT_FIELDS[name] for name in prompt}, prompt


def _check_bytes(raws: Mapping[str, msgspec.Raw], limit_bytes: int) -> None:
    if sum(len(memoryview(raw)) for raw in raws.values()) > limit_bytes:
        longest = max(raws, key=lambda name: len(memoryview(raws[name])))
        message = f"Besides messages and prompt, a body may hold {limit_bytes} bytes; shorten {longest!r}."
        raise InvalidRequest(message, param=longest)


def _fields(body: bytes, schema: type[BaseModel]) -> dict[str, msgspec.Raw]:
    names = schema.model_fields
    envelope = msgspec.defstruct("Body", [(n, msgspec.Raw, _NOTHING) for n in names], forbid_unknown_fields=True)
    try:
        read = msgspec.json.decode(body, type=envelope)
    except msgspec.ValidationError as error:
        unknown = _UNKNOWN_FIELD.match(str(error))
        if unknown is None:
            raise InvalidRequest("The JSON body of the request must be an object.", code="invalid_type") from error
        name = unknown.group(1)[:100]
        message = f"Unrecognized request argument supplied: {name}" + did_you_mean(name, names)
        raise InvalidRequest(message, param=name, code="unknown_parameter") from error
    raws = {name: getattr(read, name) for name in names}
    return {name: raw for name, raw in raws.items() if raw is not _NOTHING}


def _prompt_field(name: str, raw: msgspec.Raw) -> object:
    return _messages(raw) if name == "messages" else prompts_of(bytes(memoryview(raw)).strip(), name)


def _messages(raw: msgspec.Raw) -> list[ChatMessage]:
    messages = _decoded(raw, list[_Message], "messages")
    if not messages:
        raise InvalidRequest("Invalid value for 'messages': List should have at least 1 item.", param="messages")
    if len(messages) > MAX_MESSAGES:
        message = f"'messages' has {len(messages)} entries; a request may have {MAX_MESSAGES}."
        raise InvalidRequest(message, param="messages")
    parts = sum(len(m.content) for m in messages if isinstance(m.content, list))
    if parts > MAX_CONTENT_PARTS:
        message = f"The messages have {parts} content parts; a request may have {MAX_CONTENT_PARTS}."
        raise InvalidRequest(message, param="messages")
    if any(len(m.tool_calls or ()) > MAX_CALLS for m in messages):
        raise InvalidRequest(f"A message has more than {MAX_CALLS} 'tool_calls'.", param="messages")
    return [_message(index, message) for index, message in enumerate(messages)]


def kept_messages(raw: bytes | msgspec.Raw) -> list[ChatMessage]:
    """Reads messages that were let in before: calls are as a model made them. Raises InvalidRequest: they are none."""
    return [_message(index, message) for index, message in enumerate(_decoded(raw, list[_Message], "messages"))]


def _message(index: int, message: _Message) -> ChatMessage:
    for name in EMPTY_IN_MESSAGES:
        raw = getattr(message, name)
        if len(memoryview(raw)) > _MAX_EXTRA_BYTES or msgspec.json.decode(raw):
            raise unsupported_value(f"messages[{index}].{name}")
    content = message.content
    return ChatMessage.model_construct(
        role=message.role,
        content="".join(map(_text, content)) if isinstance(content, list) else content,
        name=message.name,
        tool_call_id=message.tool_call_id,
        tool_calls=None if message.tool_calls is None else [_call(call) for call in message.tool_calls],
        function_call=None if message.function_call is None else _called(message.function_call),
        reasoning_content=message.reasoning_content,
        reasoning=message.reasoning,
    )


def _text(part: _Part | _Refusal) -> str:
    return part.text if isinstance(part, _Part) else part.refusal


def _call(call: _Call) -> AssistantToolCall:
    return AssistantToolCall.model_construct(id=call.id, type="function", function=_called(call.function))


def _called(function: _Function) -> CalledFunction:
    return CalledFunction.model_construct(name=function.name, arguments=function.arguments)


def prompts_of(raw: bytes, field: str, most: int = MAX_PROMPTS) -> str | list[str] | list[int] | list[list[int]]:
    """Reads the JSON of one prompt or of up to `most`, as texts or as token ids. Raises InvalidRequest."""
    match raw[:1], raw[1:].lstrip()[:1]:
        case b"[", b'"':
            texts = _decoded(raw, list[str], field)
            _check_prompts(len(texts), field, most)
            return texts
        case b"[", b"[":
            # of nothing but numbers: each begins a prompt
            _check_prompts(raw.count(b"[") - 1, field, most)
            _check_token_ids(raw, field)
            prompts = _decoded(raw, list[list[int]], field)
            return [_token_ids(prompt, field) for prompt in prompts]
        case b"[", _:
            _check_token_ids(raw, field)
            return _token_ids(_decoded(raw, list[int], field), field)
    return _decoded(raw, str, field)


def _check_prompts(count: int, field: str, most: int) -> None:
    if count > most:
        message = f"Invalid value for {field!r}: more than {most} prompts; send fewer per request."
        raise InvalidRequest(message, param=field)


def _check_token_ids(raw: bytes, field: str) -> None:
    if raw.count(b",") > MAX_TOKEN_IDS:
        message = f"Invalid value for {field!r}: more than {MAX_TOKEN_IDS} token ids; send fewer per request."
        raise InvalidRequest(message, param=field)


def _token_ids(prompt: list[int], field: str) -> list[int]:
    if not prompt or min(prompt) < 0 or max(prompt) > 2**31 - 1:
        message = f"Invalid value for {field!r}: a prompt has one token id or more, each from 0 to 2147483647."
        raise InvalidRequest(message, param=field)
    return prompt


def _decoded(raw: msgspec.Raw | bytes, kind: type[ValueT], field: str) -> ValueT:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        _refuse(field, str(error), error)


def _refuse(field: str, reason: str, error: Exception) -> NoReturn:
    place = _PLACE.search(reason)
    path = place.group(1) if place is not None else ""
    if path.endswith(".type"):
        raise unsupported_kind(field + path.removesuffix(".type")) from error
    param = (field + path)[:200]
    missing = "missing required field" in reason
    raise InvalidRequest(
        f"Invalid value for {param!r}: {_PLACE.sub('', reason)[:200]}.",
        param=param,
        code="missing_required_parameter" if missing else "invalid_type",
    ) from error


@contextmanager
def _without_cycles() -> Iterator[None]:
    """Nothing decoded from JSON is part of a cycle, and looking for some takes longer than decoding."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
