"""The gate in front of the API: who asks, by the headers, and keys, allow-lists and rates.

Without a key ring everybody is let in.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from starlette.datastructures import Headers

from pdmux_actor.messages import LEAST_TARGET_S
from router.access.api_keys import KeyEntry, KeyRing, check_model
from router.access.key_figures import KeyCounts, KeyFigures
from router.access.rate_limits import KeyUsage, RateLimits, RateStatus
from router.errors import AdminOnly, InvalidRequest, ModelNotAllowed, RateLimited
from router.request_terms import Caller, Priority

# Ours first; the others are those of llm-d, whose clients need no change.
_TTFT: Sequence[str] = ("x-muxfleet-slo-ttft-ms", "x-llm-d-slo-ttft-ms")
_TPOT: Sequence[str] = ("x-muxfleet-slo-tpot-ms", "x-llm-d-slo-tpot-ms")
_TENANT: Sequence[str] = ("x-muxfleet-tenant", "x-llm-d-inference-fairness-id")
_PRIORITY = "x-muxfleet-priority"
_CONVERSATION = "x-muxfleet-conversation"
_LEAST_MS = LEAST_TARGET_S * 1000
_MAX_MS = 3_600_000.0
_MAX_NAME = 128
_PRIORITIES: Mapping[str, Priority] = {p.name.lower(): p for p in Priority}


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessGrant:
    """Names the caller who was let in; `entry` is None where no keys are in force."""

    caller: Caller
    entry: KeyEntry | None = None
    rate: RateStatus | None = None

    def may_see(self, model: str) -> bool:
        return self.entry is None or self.entry.models is None or model in self.entry.models


class AccessControl:
    """`set_keys` may be called at any time; requests under way are not asked again."""

    def __init__(
        self, *, clock: Callable[[], float], num_gateways: Callable[[], int], on_keys: Callable[[frozenset[str]], None]
    ) -> None:
        """`on_keys` gets the names of the keys in force."""
        self._clock = clock
        self._num_gateways = num_gateways
        self._on_keys = on_keys
        self._keys: KeyRing | None = None
        self._rates = RateLimits()
        self._counts = KeyCounts()

    def set_keys(self, keys: KeyRing | None) -> None:
        self._keys = keys
        self._rates.keep(frozenset() if keys is None else keys.ids())
        self._counts.keep(frozenset() if keys is None else keys.ids())
        self._on_keys(frozenset() if keys is None else keys.names())

    def identify(self, headers: Headers) -> AccessGrant:
        """Raises:
        InvalidApiKey: keys are in force and this is none of them, or has expired.
        InvalidRequest: a header says what it cannot.
        """
        caller = _caller_of(headers)
        if self._keys is None:
            return AccessGrant(caller=caller)
        entry = self._keys.admit(_api_key_of(headers))
        allowed = replace(
            caller,
            tenant=entry.name,
            key_id=entry.key_id,
            priority=min(caller.priority, entry.priority),
            max_priority=entry.priority,
            may_tighten_slo=entry.may_tighten_slo,
        )
        return AccessGrant(caller=allowed, entry=entry)

    def enter(self, who: AccessGrant, model: str) -> AccessGrant:
        """Lets a generation in. Raises: ModelNotAllowed: the key is not for this model. RateLimited: the key has used
        up its rate.
        """
        if who.entry is None:
            return who
        try:
            check_model(who.entry, model)
        except ModelNotAllowed:
            self._counts.not_allowed(who.entry.key_id)
            raise
        rate = self._rates.enter(who.entry, self._clock(), num_gateways=self._num_gateways())
        if rate.retry_after_s is not None:
            self._counts.rate_limited(who.entry.key_id)
            raise RateLimited(key=who.entry.name, retry_after_s=rate.retry_after_s, headers=rate.headers())
        self._counts.entered(who.entry.key_id)
        return replace(who, rate=rate)

    def check_owner(self, key_id: str, model: str) -> None:
        """Checks work that a key left here earlier. Raises InvalidApiKey: it is in force no more. ModelNotAllowed."""
        if self._keys is not None:
            check_model(self._keys.of(key_id), model)

    def spend(self, key_id: str, tokens: int) -> None:
        """Charges what a generation of the key took, where keys are in force."""
        if self._keys is None:
            return
        now_s = self._clock()
        self._rates.spend(key_id, tokens, now_s)
        self._counts.spent(key_id, tokens, now_s)

    def figures(self, waiting_tokens: Mapping[str, int]) -> tuple[KeyFigures, ...]:
        """Returns what is counted of each key in force, and what is left of its rates here. `waiting_tokens`: by name
        of a key.
        """
        now_s, gateways = self._clock(), self._num_gateways()
        entries = () if self._keys is None else self._keys.entries()
        return tuple(
            self._counts.figures(
                entry,
                self._rates.status(entry, now_s, num_gateways=gateways),
                now_s,
                waiting_tokens=waiting_tokens.get(entry.name, 0),
            )
            for entry in entries
        )

    def usage(self) -> tuple[KeyUsage, ...]:
        """Returns what is left to the keys that have used something."""
        return self._rates.usage(self._clock())

    def restore_usage(self, usages: Iterable[KeyUsage]) -> None:
        """Takes over what gateways before this one have let keys use."""
        self._rates.restore(usages, self._clock())

    def check_admin(self, who: AccessGrant) -> None:
        """Raises AdminOnly."""
        if who.entry is not None and not who.entry.is_admin:
            raise AdminOnly()


def _caller_of(headers: Headers) -> Caller:
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


def _api_key_of(headers: Headers) -> str | None:
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
    if not _LEAST_MS <= value_ms <= _MAX_MS:
        message = f"Header {name} is {text[:40]!r}: send milliseconds, at least {_LEAST_MS}, at most {_MAX_MS:.0f}."
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
