"""Identifies who asks, and what they ask for beside the body: what clients say in headers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from starlette.datastructures import Headers

from pdmux_actor.messages import Slo
from router.admission_request import Priority
from router.errors import InvalidRequest

_TIER_NAMES: Mapping[Priority, str] = MappingProxyType(
    {Priority.LOW: "flex", Priority.NORMAL: "default", Priority.HIGH: "priority"}
)
# Ours first; the others are those of llm-d, whose clients need no change.
_TTFT: Sequence[str] = ("x-muxfleet-slo-ttft-ms", "x-llm-d-slo-ttft-ms")
_TPOT: Sequence[str] = ("x-muxfleet-slo-tpot-ms", "x-llm-d-slo-tpot-ms")
_TENANT: Sequence[str] = ("x-muxfleet-tenant", "x-llm-d-inference-fairness-id")
_PRIORITY = "x-muxfleet-priority"
_CONVERSATION = "x-muxfleet-conversation"
_MAX_MS = 3_600_000.0
_MAX_NAME = 128
_PRIORITIES: Mapping[str, Priority] = {p.name.lower(): p for p in Priority}


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """`tenant` names the API key, or whom a trusted proxy says it asks for; `key_id` is empty without keys,
    `request_id` the one that its client knows; `traceparent` is that of the request's span where it is traced.
    Targets that are None are the model's; tighter ones than the model's are granted to whom `may_tighten_slo` says.
    `priority` is at most `max_priority`; `names_priority`: a header asked for it, which counts before the body.
    """

    tenant: str = ""
    priority: Priority = Priority.NORMAL
    max_priority: Priority = Priority.HIGH
    names_priority: bool = False
    ttft_s: float | None = None
    tbt_s: float | None = None
    conversation: str = ""
    key_id: str = ""
    request_id: str = ""
    traceparent: str = ""
    may_tighten_slo: bool = False

    def asking(self, priority: Priority | None, conversation: str | None) -> "Caller":
        """Returns the caller with what the body asks for, as far as headers leave it open and the key admits it."""
        if priority is None or self.names_priority:
            priority = self.priority
        return replace(
            self,
            priority=min(priority, self.max_priority),
            conversation=self.conversation or conversation or "",
        )

    @property
    def service_tier(self) -> str:
        """Returns what OpenAI calls the priority."""
        return _TIER_NAMES[self.priority]

    def slo(self, of_model: Slo) -> "GrantedSlo":
        """A target binds everything that shares the unit, so one client's wish may be looser than the model's own, not
        tighter, unless its key says so.
        """
        asked = Slo(
            ttft_s=of_model.ttft_s if self.ttft_s is None else self.ttft_s,
            tbt_s=of_model.tbt_s if self.tbt_s is None else self.tbt_s,
        )
        if self.may_tighten_slo:
            return GrantedSlo(slo=asked)
        return GrantedSlo(
            slo=Slo(ttft_s=max(asked.ttft_s, of_model.ttft_s), tbt_s=max(asked.tbt_s, of_model.tbt_s)),
            is_ttft_clamped=asked.ttft_s < of_model.ttft_s,
            is_tbt_clamped=asked.tbt_s < of_model.tbt_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedSlo:
    """The targets that a request has, and which of them were asked for tighter than that."""

    slo: Slo
    is_ttft_clamped: bool = False
    is_tbt_clamped: bool = False


ANYBODY = Caller()


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
