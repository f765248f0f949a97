"""The form that a request asks its output to have: OpenAI's `response_format`, and what vLLM has beside it."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field

from pdmux_actor.messages import StructuredKind, StructuredOutput
from router.errors import InvalidRequest
from router.openai.request_part import RequestPart
from router.openai.schema_support import check_schema
from router.openai.spelled_schema import spelled_out

MAX_FORM_CHARACTERS = 65_536
MAX_CHOICES = 1024
_KINDS: Mapping[str, str] = MappingProxyType({"ebnf": "grammar", "json_schema": "json"})  # SGLang's names of them
_ANY_OBJECT = '{"type":"object"}'

FormText = Annotated[str, Field(min_length=1, max_length=MAX_FORM_CHARACTERS)]
Choices = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=1024)]], Field(min_length=1, max_length=MAX_CHOICES)
]


class TextFormat(RequestPart):
    type: Literal["text"]


class JsonObjectFormat(RequestPart):
    type: Literal["json_object"]


class NamedSchema(RequestPart):
    name: str = Field(min_length=1, max_length=64)
    description: str | None = None
    json_schema: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class JsonSchemaFormat(RequestPart):
    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


class StructuredOutputs(RequestPart):
    """vLLM's; one of them."""

    json_form: str | dict[str, Any] | None = Field(default=None, alias="json")
    regex: FormText | None = None
    choice: Choices | None = None
    grammar: FormText | None = None
    json_object: bool | None = None
    structural_tag: FormText | None = None


def form_of(
    response_format: TextFormat | JsonObjectFormat | JsonSchemaFormat | None,
    structured: StructuredOutputs | None,
    guided: Mapping[str, Any],
) -> StructuredOutput | None:
    """`guided`: vLLM's older parameters, and SGLang's, by name.

    Raises:
        InvalidRequest: more than one form is asked for, or a schema that no output can be held to.
    """
    asked: list[tuple[str, str, Any]] = []  # parameter, what it is, its value
    match response_format:
        case JsonSchemaFormat(json_schema=named):
            schema = named.json_schema
            check_schema(schema, "response_format.json_schema.schema", strict=bool(named.strict))
            asked.append(("response_format", "json", schema))
        case JsonObjectFormat():
            asked.append(("response_format", "json", _ANY_OBJECT))
    if structured is not None:
        held = structured.model_dump(by_alias=True, exclude_none=True)
        if held.pop("json_object", False):
            held["json"] = held.get("json", _ANY_OBJECT)
        asked += [("structured_outputs", kind, value) for kind, value in held.items()]
    asked += [
        (name, _KINDS.get(name, name.removeprefix("guided_")), value)
        for name, value in guided.items()
        if value is not None
    ]
    if len(asked) > 1:
        names = ", ".join(f"{param} ({kind})" for param, kind, _ in asked)
        raise InvalidRequest(
            f"The output can have one form only, not {names}; leave the others out.", param=asked[1][0]
        )
    return _form(*asked[0]) if asked else None


def _form(param: str, kind: str, value: Any) -> StructuredOutput:  # noqa: ANN401 - what JSON holds
    if kind == "json":
        return StructuredOutput(kind=StructuredKind.JSON_SCHEMA, text=_schema_text(param, value), param=param)
    text = json.dumps(value) if kind == "choice" else value
    return StructuredOutput(kind=StructuredKind(kind), text=text, param=param)


def _schema_text(param: str, value: str | dict[str, Any]) -> str:
    try:
        schema = msgspec.json.decode(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"Invalid {param!r}: its JSON schema is no JSON: {error}.", param=param) from error
    if param != "response_format":
        check_schema(schema, param, strict=False)
    return msgspec.json.encode(spelled_out(schema)).decode()
