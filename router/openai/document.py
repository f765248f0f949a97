"""The OpenAPI document: FastAPI's, plus the request bodies, which the gateway reads itself."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from router.openai.chat import ChatCompletionRequest
from router.openai.completions import CompletionRequest
from router.openai.schemas import ErrorResponse
from router.openai.tokenize_requests import TokenizeRequest

_REQUESTS: Sequence[type[BaseModel]] = (ChatCompletionRequest, CompletionRequest, TokenizeRequest)
_GENERATION_ERRORS = (400, 404, 413, 415, 429, 500, 502, 503)
_REF = "#/components/schemas/{model}"
_MEANINGS: Mapping[int, str] = {
    400: "Invalid request",
    404: "No such model",
    413: "Body too large",
    415: "Not JSON",
    429: "The model's queue is full; honour Retry-After",
    500: "The gateway or the engine failed",
    502: "Units died under the request",
    503: "No unit serves the model now; honour Retry-After",
}

# Before OpenAPI 3.2 the schema of an event stream describes each event.
_EVENT: Mapping[str, Any] = {
    "type": "object",
    "required": ["data"],
    "properties": {
        "data": {"type": "string", "description": "A chunk as JSON; last of all `[DONE]`"},
        "event": {"type": "string"},
    },
}


def body_of(schema: type[BaseModel] | type[msgspec.Struct]) -> dict[str, Any]:
    reference = {"$ref": _REF.format(model=schema.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": reference}}}}


def responses_of(
    schema: type[BaseModel], *errors: int, error: type[BaseModel] = ErrorResponse, streams: bool = True
) -> dict[str, Any]:
    """Keyword arguments of a route: its success and its errors (a generation's, if none are named)."""
    responses: dict[int, dict[str, Any]] = {
        status: {"model": error, "description": _MEANINGS[status]} for status in errors or _GENERATION_ERRORS
    }
    responses[200] = {"model": schema}
    if streams and not errors:
        responses[200]["content"] = {"text/event-stream": {"schema": dict(_EVENT)}}
        responses[200]["description"] = "The completion; server-sent chunks with `stream`"
    return {"responses": responses}


class Document:
    """Builds once."""

    def __init__(self, app: FastAPI, structs: Sequence[type[msgspec.Struct]]) -> None:
        """`structs` are request bodies that pydantic does not read."""
        self._app = app
        self._structs = structs
        self._built: dict[str, Any] | None = None

    def build(self) -> dict[str, Any]:
        if self._built is None:
            document = get_openapi(title=self._app.title, version=self._app.version, routes=self._app.routes)
            _, definitions = models_json_schema([(m, "validation") for m in _REQUESTS], ref_template=_REF)
            _forget_validation_errors(document)
            document.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
            _, components = msgspec.json.schema_components(
                self._structs, ref_template=_REF.replace("{model}", "{name}")
            )
            document["components"]["schemas"].update(components)
            self._built = document
        return self._built


def _forget_validation_errors(document: dict[str, Any]) -> None:
    """FastAPI lists its 422 for every route with a parameter; no path here can break its schema."""
    for path in document["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)
