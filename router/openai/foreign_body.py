"""Bodies of other APIs on their way to a chat request."""

import re
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from pydantic import ValidationError

from router.errors import InvalidRequest, UnsupportedParameter
from router.openai.body import invalid, no_json
from router.openai.chat import MAX_MESSAGES, AssistantToolCall, CalledFunction, ChatCompletionRequest, ChatMessage, Role
from router.openai.nearest_name import did_you_mean

BodyT = TypeVar("BodyT", bound=msgspec.Struct)

_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*?)`", re.DOTALL)
_MISSING_FIELD = re.compile(r"Object missing required field `(.*?)`", re.DOTALL)
_OTHER_KIND = re.compile(r"Invalid (?:enum )?value '(\w*)'")
_PLACE = re.compile(r" - at `\$\.?(.*?)`$", re.DOTALL)


def decoded(body: bytes, kind: type[BodyT]) -> BodyT:
    """Raises:
    InvalidRequest: the body is not JSON, or not of the kind; `param` names where.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _refusal(str(error), kind) from error
    except (ValueError, RecursionError) as error:
        raise no_json(body, error) from error


def chat_request(parameters: dict[str, Any], messages: Sequence[ChatMessage]) -> ChatCompletionRequest:
    """Parameters that are None were not sent. Raises InvalidRequest, in the chat's names."""
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequest(f"The request has {len(messages)} messages; it may have {MAX_MESSAGES}.", param="messages")
    known = {name: value for name, value in parameters.items() if value is not None}
    document = {**known, "messages": [{"role": "user"}]}
    try:
        request = ChatCompletionRequest.model_validate(document)
    except ValidationError as error:
        raise invalid(document, error.errors(include_url=False, include_context=False), ()) from error
    return request.model_copy(update={"messages": list(messages)})


def message(
    role: Role,
    text: str,
    *,
    calls: Sequence[tuple[str, str, str]] = (),
    reasoning: str | None = None,
    call_id: str | None = None,
) -> ChatMessage:
    """`calls` are ids, names and arguments as JSON text."""
    made = [
        AssistantToolCall.model_construct(
            id=one, type="function", function=CalledFunction.model_construct(name=name, arguments=arguments)
        )
        for one, name, arguments in calls
    ]
    return ChatMessage.model_construct(
        role=role, content=text, tool_calls=made or None, reasoning_content=reasoning, tool_call_id=call_id
    )


def _refusal(reason: str, kind: type[msgspec.Struct]) -> InvalidRequest:
    place = _PLACE.search(reason)
    param = place.group(1)[:200] if place is not None else ""
    unknown, missing = _UNKNOWN_FIELD.match(reason), _MISSING_FIELD.match(reason)
    if unknown is not None:
        name = unknown.group(1)[:100]
        hint = did_you_mean(name, kind.__struct_fields__) if not param else ""
        where = f"{param}.{name}" if param else name
        return InvalidRequest(
            f"Unrecognized request argument supplied: {where}{hint}", param=where, code="unknown_parameter"
        )
    if missing is not None:
        where = f"{param}.{missing.group(1)}" if param else missing.group(1)
        message_ = f"Missing required parameter: {where!r}."
        return InvalidRequest(message_, param=where, code="missing_required_parameter")
    said = _PLACE.sub("", reason)[:200]
    other = _OTHER_KIND.match(said)
    if other is not None and param.endswith(".type"):
        what = f"{param!r}: {other.group(1)!r} is not implemented; leave it out."
        return UnsupportedParameter(what, param=param)
    code = "invalid_type" if other is None else "invalid_value"
    return InvalidRequest(f"Invalid value for {param!r}: {said}.", param=param or None, code=code)
