"""Checks what clients say in headers."""

import math
from collections.abc import Mapping, Sequence

from starlette.datastructures import Headers

from router.access.caller import Caller
from router.admission_request import Priority
from router.errors import InvalidRequest

# Ours first; the others are those of llm-d, whose clients need no change.
_TTFT: Sequence[str] = ("x-muxfleet-slo-ttft-ms", "x-llm-d-slo-ttft-ms")
_TPOT: Sequence[str] = ("x-muxfleet-slo-tpot-ms", "x-llm-d-slo-tpot-ms")
_TENANT: Sequence[str] = ("x-muxfleet-tenant", "x-llm-d-inference-fairness-id")
_PRIORITY = "x-muxfleet-priority"
_CONVERSATION = "x-muxfleet-conversation"
_MAX_MS = 3_600_000.0
_MAX_NAME = 128
_PRIORITIES: Mapping[str, Priority] = {p.name.lower(): p for p in Priority}


def caller_of(headers: Headers) -> Caller:
    """The caller as the headers tell. Where API keys are in force, the key's owner replaces the tenant.

    Raises:
        InvalidRequest: a header has a value that it cannot have; `param` names it.
    """
    return Caller(
        tenant=_name(headers, _TENANT),
        priority=_priority(headers),
        names_priority=_PRIORITY in headers,
        ttft_s=_seconds(headers, _TTFT),
        tbt_s=_seconds(headers, _TPOT),
        conversation=_name(headers, (_CONVERSATION,)),
    )


def api_key_of(headers: Headers) -> str | None:
    """`Authorization: Bearer KEY`, or `x-api-key: KEY`."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return headers.get("x-api-key") or None


def _first(headers: Headers, names: Sequence[str]) -> tuple[str, str] | None:
    return next(((name, headers[name]) for name in names if name in headers), None)


def _seconds(headers: Headers, names: Sequence[str]) -> float | None:
    found = _first(headers, names)
    if found is None:
        return None
    name, text = found
    try:
        value_ms = float(text)
    except ValueError:
        value_ms = math.nan
    if not 0.0 < value_ms <= _MAX_MS:
        message = f"Header {name} is {text[:40]!r}: send milliseconds above 0, at most {_MAX_MS:.0f}."
        raise InvalidRequest(message, param=name)
    return value_ms / 1000.0


def _priority(headers: Headers) -> Priority:
    text = headers.get(_PRIORITY)
    if text is None:
        return Priority.NORMAL
    priority = _PRIORITIES.get(text.strip().lower())
    if priority is None:
        message = f"Header {_PRIORITY} is {text[:40]!r}: send one of {', '.join(_PRIORITIES)}."
        raise InvalidRequest(message, param=_PRIORITY)
    return priority


def _name(headers: Headers, names: Sequence[str]) -> str:
    found = _first(headers, names)
    if found is None:
        return ""
    name, text = found
    if len(text) > _MAX_NAME:
        raise InvalidRequest(f"Header {name} is longer than {_MAX_NAME} characters.", param=name)
    return text
