"""One table: errors to statuses and OpenAI error bodies, which name parameters as the API that was called does."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec
from starlette.responses import Response

from router import errors
from router.admission.admission import MAX_RETRY_AFTER_S

_Names = Sequence[tuple[re.Pattern[str], str]]


def _names(*pairs: tuple[str, str]) -> _Names:
    """Beginnings of parameters, and what stands for them; the first that fits counts."""
    return tuple((re.compile(rf"{pattern}(?=[.\[]|$)"), name) for pattern, name in pairs)


# By the beginning of paths.
_NAMES: Mapping[str, _Names] = MappingProxyType(
    {
        "/v1/messages": _names(
            (r"tools\[(\d+)\]\.function\.parameters", r"tools[\1].input_schema"),
            (r"tools\[(\d+)\]\.function", r"tools[\1]"),
            (r"tool_choice\.function", "tool_choice"),
            (r"response_format\.json_schema", "output_config.format"),
            ("response_format", "output_config.format"),
            ("reasoning_effort", "output_config.effort"),
            ("stop", "stop_sequences"),
        ),
        "/v1/responses": _names(
            (r"tools\[(\d+)\](\.tools\[\d+\])?\.function", r"tools[\1]\2"),
            (r"tool_choice\.(function|allowed_tools)", "tool_choice"),
            (r"response_format\.json_schema", "text.format"),
            ("response_format", "text.format"),
            ("reasoning_effort", "reasoning.effort"),
            ("max_tokens", "max_output_tokens"),
            ("messages", "input"),
        ),
    }
)


def in_names_of(path: str, message: str, param: str | None) -> tuple[str, str | None]:
    """Returns an error's message and parameter as the API at `path` has them."""
    if param is None:
        return message, None
    names = next((names for beginning, names in _NAMES.items() if path.startswith(beginning)), ())
    for pattern, name in names:
        if pattern.match(param):
            called = pattern.sub(name, param, count=1)
            return message.replace(param, called), called
    return message, param


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorShape:
    """`should_retry` tells SDKs whether the same request can succeed later."""

    status: int
    type: str
    code: str | None
    should_retry: bool = False


_CALLER = "invalid_request_error"
_ANTHROPIC_PATH = "/v1/messages"
_ANTHROPIC_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_NO_THREADS: Mapping[str, Any] = {"error_code": "thread_unsupported_request", "unsupported": ("thread",)}
INTERNAL = ErrorShape(status=500, type="server_error", code="internal_error")

SHAPES: Mapping[type[errors.RouterError], ErrorShape] = {
    errors.InvalidRequest: ErrorShape(status=400, type=_CALLER, code="invalid_value"),
    errors.ContextLengthExceeded: ErrorShape(status=400, type=_CALLER, code="context_length_exceeded"),
    errors.UnsupportedParameter: ErrorShape(status=400, type=_CALLER, code="unsupported_parameter"),
    errors.ThreadsUnsupported: ErrorShape(status=400, type=_CALLER, code="unsupported_parameter"),
    errors.BodyTooLarge: ErrorShape(status=413, type=_CALLER, code="request_too_large"),
    errors.UnsupportedMediaType: ErrorShape(status=415, type=_CALLER, code="unsupported_media_type"),
    errors.PathNotFound: ErrorShape(status=404, type=_CALLER, code="unknown_url"),
    errors.MethodNotAllowed: ErrorShape(status=405, type=_CALLER, code="method_not_supported"),
    errors.ModelNotFound: ErrorShape(status=404, type=_CALLER, code="model_not_found"),
    errors.ResponseNotFound: ErrorShape(status=404, type=_CALLER, code="response_not_found"),
    errors.PreviousResponseNotFound: ErrorShape(status=400, type=_CALLER, code="previous_response_not_found"),
    errors.ConversationNotFound: ErrorShape(status=404, type=_CALLER, code="conversation_not_found"),
    errors.GatewaysSilent: ErrorShape(
        status=503, type="service_unavailable", code="gateways_silent", should_retry=True
    ),
    errors.UnitNotFound: ErrorShape(status=404, type=_CALLER, code="unit_not_found"),
    errors.FileNotKept: ErrorShape(status=404, type=_CALLER, code="file_not_found"),
    errors.BatchNotFound: ErrorShape(status=404, type=_CALLER, code="batch_not_found"),
    errors.BatchesUnavailable: ErrorShape(
        status=503, type="service_unavailable", code="batches_unavailable", should_retry=True
    ),
    errors.UnitSilent: ErrorShape(status=503, type="service_unavailable", code="unit_silent", should_retry=True),
    errors.ControlLoopSilent: ErrorShape(
        status=503, type="service_unavailable", code="control_loop_silent", should_retry=True
    ),
    errors.PlannerBusy: ErrorShape(status=503, type="service_unavailable", code="planner_busy", should_retry=True),
    errors.TooManyFollowers: ErrorShape(
        status=503, type="service_unavailable", code="too_many_consoles", should_retry=True
    ),
    errors.InvalidApiKey: ErrorShape(status=401, type="authentication_error", code="invalid_api_key"),
    errors.ModelNotAllowed: ErrorShape(status=403, type="permission_error", code="model_not_allowed"),
    errors.AdminOnly: ErrorShape(status=403, type="permission_error", code="admin_only"),
    errors.HeadersTooLarge: ErrorShape(status=431, type=_CALLER, code="headers_too_large"),
    errors.RequestTimeout: ErrorShape(status=408, type=_CALLER, code="request_timeout", should_retry=True),
    errors.RateLimited: ErrorShape(status=429, type="rate_limit_error", code="rate_limit_exceeded", should_retry=True),
    errors.Overloaded: ErrorShape(status=429, type="rate_limit_error", code="slow_down", should_retry=True),
    errors.ModelUnavailable: ErrorShape(status=503, type="service_unavailable", code="no_capacity", should_retry=True),
    errors.ModelLoadFailed: ErrorShape(status=503, type="service_unavailable", code="model_load_failed"),
    errors.GatewayNotReady: ErrorShape(status=503, type="service_unavailable", code="no_capacity", should_retry=True),
    errors.TokenizerUnavailable: ErrorShape(
        status=503, type="service_unavailable", code="tokenizer_unavailable", should_retry=True
    ),
    errors.GenerationFailed: ErrorShape(status=500, type="server_error", code="generation_failed"),
    errors.GatewayFault: INTERNAL,
    errors.WeightsChanged: ErrorShape(
        status=503, type="service_unavailable", code="weights_changed", should_retry=True
    ),
    errors.UnitsLost: ErrorShape(status=502, type="server_error", code="unit_lost", should_retry=True),
    errors.RequestKilledUnits: ErrorShape(status=500, type="server_error", code="request_killed_units"),
}


def shape_of(error: errors.RouterError) -> ErrorShape:
    shape = SHAPES.get(type(error))
    assert shape is not None, f"{type(error).__name__} has no row in SHAPES"
    return shape


def error_body(error: errors.RouterError, path: str = "") -> dict[str, Any]:
    """The body, in the shape of the API that `path` belongs to, and in its names."""
    shape = shape_of(error)
    message, param = in_names_of(path, error.message, error.param)
    body = _body(message, shape, param, error.code or shape.code, path)
    if isinstance(error, errors.ThreadsUnsupported):
        body["error"]["details"] = _NO_THREADS
    return body


def internal_error_body(request_id: str, path: str = "") -> dict[str, Any]:
    return error_body(errors.GatewayFault(request_id=request_id), path)


def error_response(error: errors.RouterError, path: str = "") -> Response:
    shape = shape_of(error)
    headers = {"x-should-retry": "true" if shape.should_retry else "false"}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, min(MAX_RETRY_AFTER_S, error.retry_after_s)))
    if isinstance(error, errors.RateLimited | errors.ModelUnavailable):
        headers |= error.headers
    if isinstance(error, errors.InvalidApiKey):
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, errors.MethodNotAllowed):
        headers["allow"] = error.allow
    return Response(
        msgspec.json.encode(error_body(error, path)), shape.status, headers=headers, media_type="application/json"
    )


def internal_error_response(request_id: str, path: str = "") -> Response:
    return Response(
        msgspec.json.encode(internal_error_body(request_id, path)),
        INTERNAL.status,
        headers={"x-should-retry": "false"},
        media_type="application/json",
    )


def _body(message: str, shape: ErrorShape, param: str | None, code: str | None, path: str) -> dict[str, Any]:
    if path.startswith(_ANTHROPIC_PATH):
        kind = _ANTHROPIC_TYPES.get(shape.status, "invalid_request_error" if shape.status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": message}}
    return {"error": {"message": message, "type": shape.type, "param": param, "code": code}}
