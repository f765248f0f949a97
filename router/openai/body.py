"""Turns the bytes of a request body into a validated request."""

import codecs
import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import msgspec
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from router.errors import InvalidRequest, UnsupportedParameter
from router.openai.chat import EMPTY_IN_MESSAGES, unsupported_kind, unsupported_value
from router.openai.large_body import parameters_and_prompt
from router.openai.nearest_name import did_you_mean
from router.openai.parameters import UNIMPLEMENTED
from router.openai.request_part import RequestPart

RequestT = TypeVar("RequestT", bound=RequestPart)

_HALF_A_PAIR = re.compile(
    rb"\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F]", re.DOTALL
)  # as JavaScript says a text that was cut in the midst of an emoji
SMALL_BODY_BYTES = 64 * 1024  # pydantic reads so much in some ms, whatever it is, and says best what is wrong


def parse_body(body: bytes, schema: type[RequestT]) -> RequestT:
    """Raises:
    InvalidRequest: the body is not JSON, or breaks `schema`; `param` names the first offending field.
    """
    prompt: dict[str, Any] = {}
    try:
        if len(body) <= SMALL_BODY_BYTES:
            document = msgspec.json.decode(body)
        else:
            document, prompt = parameters_and_prompt(body, schema)
    except (ValueError, RecursionError) as error:
        raise no_json(body, error) from error
    if not isinstance(document, dict):
        raise InvalidRequest("The JSON body of the request must be an object.", code="invalid_type")
    try:
        return schema.model_validate(document).model_copy(update=prompt)
    except ValidationError as error:
        raise invalid(document, error.errors(include_url=False, include_context=False), schema.model_fields) from error


def no_json(body: bytes, error: Exception) -> InvalidRequest:
    """Says what keeps a body from being read, which `error` knows where it is not its encoding."""
    is_wide = body.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    why: object = error
    if is_wide:
        why = "it is UTF-16, as PowerShell's > writes files; send UTF-8"
    elif not body.strip():
        why = "it is empty"
    elif _HALF_A_PAIR.search(body):
        why = "a text has one half of a pair of surrogates (\\ud800 to \\udfff): cut it between characters"
    return InvalidRequest(f"We could not parse the JSON body of your request: {why}.", code="invalid_json")


def invalid(document: dict[str, Any], details: Sequence[ErrorDetails], known: Iterable[str]) -> InvalidRequest:
    """Tells what is wrong, of what pydantic says; `known` are the names that a parameter may have."""
    unknown = next((d for d in details if d["type"] == "extra_forbidden" and len(d["loc"]) == 1), None)
    if unknown is not None:
        name = str(unknown["loc"][0])[:100]
        message = f"Unrecognized request argument supplied: {name}" + did_you_mean(name, known)
        return InvalidRequest(message, param=name, code="unknown_parameter")
    first = details[0]
    field = str(first["loc"][0]) if first["loc"] else None
    if field in UNIMPLEMENTED:
        return UnsupportedParameter(f"{field!r} with this value is not implemented; leave it out.", param=field)
    param = _param(document, first)
    other = next((d for d in details if _is_of_other_kind(d)), None)
    if other is not None:
        place = _param(document, other)
        return unsupported_kind(place if field == "tools" else place.removesuffix(".type"))
    if field == "messages" and first["loc"][-1] in EMPTY_IN_MESSAGES:
        return unsupported_value(param)
    if first["type"] == "missing":
        message = f"Missing required parameter: {param!r}."
        return InvalidRequest(message, param=param, code="missing_required_parameter")
    # A union reports one error per member: name them all.
    wishes = dict.fromkeys(d["msg"] for d in details if d["loc"][:1] == first["loc"][:1])
    code = "invalid_type" if first["type"].endswith("_type") else "invalid_value"
    # Numbers only: a text may be somebody's prompt, and messages reach logs.
    given = first["input"] if isinstance(first["input"], int | float) else None
    got = "" if given is None else f", not {str(given).lower()[:40]}"
    message = f"Invalid value for {param!r}: {'; or '.join(list(wishes)[:4])}{got}."
    return InvalidRequest(message, param=param, code=code)


def _is_of_other_kind(detail: ErrorDetails) -> bool:
    """The type of a content part is another than text, that of a tool or a call another than function."""
    location = detail["loc"]
    if location[0] == "messages" and detail["type"] == "union_tag_invalid":
        return True
    return location[0] in ("messages", "tools") and location[-1] == "type" and detail["type"] == "literal_error"


def _param(document: object, detail: ErrorDetails) -> str:
    """`messages[0].content`: the error's location without the names of union members, which are not in the input."""
    path = ""
    here: Any = document
    *parents, last = detail["loc"]
    for step in parents:
        if isinstance(step, int) and isinstance(here, list) and step < len(here):
            path += f"[{step}]"
        elif isinstance(here, dict) and step in here:
            path += f".{step}" if path else str(step)
        else:
            continue
        here = here[step]
    if isinstance(last, int):
        path += f"[{last}]" if isinstance(here, list) else ""
    elif detail["type"] == "missing" or (isinstance(here, dict) and last in here):
        path += f".{last}" if path else str(last)
    return path[:200]
