"""Requests and tokens per minute of each API key, as token buckets. Sans-I/O."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from router.access.api_keys import KeyEntry

_ROUNDING_S = 1e-6  # what floats may be off by


WINDOW_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyUsage:
    """Shares of a minute's rate: 1 is all of it, below 0 is debt. A rate that is not limited is whole."""

    key_id: str
    requests_left: float = 1.0
    tokens_left: float = 1.0

    def after(self, elapsed_s: float) -> "KeyUsage":
        """Returns what is left later, when nothing is used meanwhile."""
        filled = max(0.0, elapsed_s) / WINDOW_S
        return KeyUsage(
            key_id=self.key_id,
            requests_left=min(1.0, self.requests_left + filled),
            tokens_left=min(1.0, self.tokens_left + filled),
        )

    @property
    def is_whole(self) -> bool:
        return self.requests_left >= 1.0 and self.tokens_left >= 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RateStatus:
    """Holds the figures of `x-ratelimit-*` headers; what is None is not limited."""

    limit_requests: int | None = None
    remaining_requests: int = 0
    reset_requests_s: float = 0.0
    limit_tokens: int | None = None
    remaining_tokens: int = 0
    reset_tokens_s: float = 0.0
    retry_after_s: int | None = None  # set when the request is beyond the rate

    def headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        for kind, limit, remaining, reset_s in (
            ("requests", self.limit_requests, self.remaining_requests, self.reset_requests_s),
            ("tokens", self.limit_tokens, self.remaining_tokens, self.reset_tokens_s),
        ):
            if limit is not None:
                headers[f"x-ratelimit-limit-{kind}"] = str(limit)
                headers[f"x-ratelimit-remaining-{kind}"] = str(remaining)
                headers[f"x-ratelimit-reset-{kind}"] = f"{reset_s:.3f}s"
        return headers


class _Bucket:
    """Holds a minute's worth; may go into debt, which later minutes pay."""

    def __init__(self, per_minute: float, now_s: float, left: float = 1.0) -> None:
        """`left` is the share of a minute's worth that it begins with."""
        self.per_minute = per_minute
        self._level = left * per_minute
        self._at_s = now_s

    def left(self, now_s: float) -> float:
        return self.level(now_s) / self.per_minute

    def level(self, now_s: float) -> float:
        filled = self._level + (now_s - self._at_s) * self.per_minute / WINDOW_S
        self._level, self._at_s = min(self.per_minute, filled), now_s
        return self._level

    def resize(self, per_minute: float, now_s: float) -> None:
        share = self.left(now_s)
        self.per_minute, self._level = per_minute, share * per_minute

    def take(self, amount: float, now_s: float) -> None:
        self._level = self.level(now_s) - amount

    def wait_s(self, amount: float, now_s: float) -> float:
        """Returns the seconds until there is so much, or as much as there ever is."""
        missing = min(amount, self.per_minute) - self.level(now_s)
        wait_s = missing * WINDOW_S / self.per_minute
        return wait_s if wait_s > _ROUNDING_S else 0.0


@dataclass(slots=True, eq=False)
class _KeyBuckets:
    requests: _Bucket | None
    tokens: _Bucket | None


class RateLimits:
    """A request takes one, and its tokens once they are known; a key in debt waits. Gateways share a rate evenly."""

    def __init__(self) -> None:
        self._buckets: dict[str, _KeyBuckets] = {}
        self._restored: dict[str, tuple[KeyUsage, float]] = {}  # with the time that it is of

    def enter(self, entry: KeyEntry, now_s: float, *, num_gateways: int) -> RateStatus:
        """Takes one request, unless `retry_after_s` is set."""
        buckets = self._of(entry, now_s, num_gateways)
        wait_s = 0.0
        if buckets.requests is not None:
            wait_s = buckets.requests.wait_s(1.0, now_s)
        if buckets.tokens is not None:
            wait_s = max(wait_s, buckets.tokens.wait_s(1.0, now_s))
        if wait_s <= 0.0 and buckets.requests is not None:
            buckets.requests.take(1.0, now_s)
        return _status(entry, buckets, now_s, retry_after_s=math.ceil(wait_s) if wait_s > 0 else None)

    def status(self, entry: KeyEntry, now_s: float, *, num_gateways: int) -> RateStatus:
        return _status(entry, self._of(entry, now_s, num_gateways), now_s, retry_after_s=None)

    def spend(self, key_id: str, tokens: int, now_s: float) -> None:
        buckets = self._buckets.get(key_id)
        if buckets is not None and buckets.tokens is not None:
            buckets.tokens.take(float(tokens), now_s)

    def keep(self, key_ids: frozenset[str]) -> None:
        self._buckets = {k: b for k, b in self._buckets.items() if k in key_ids}
        self._restored = {k: kept for k, kept in self._restored.items() if k in key_ids}

    def usage(self, now_s: float) -> tuple[KeyUsage, ...]:
        """Returns what is left to keys that have used something of this gateway's part."""
        told = [_usage(key_id, buckets, now_s) for key_id, buckets in self._buckets.items()]
        waiting = [usage.after(now_s - at_s) for usage, at_s in self._restored.values()]
        return tuple(usage for usage in (*told, *waiting) if not usage.is_whole)

    def restore(self, usages: Iterable[KeyUsage], now_s: float) -> None:
        """Keys begin with what is left to them; those that have asked for something already lose the difference."""
        for usage in usages:
            buckets = self._buckets.get(usage.key_id)
            if buckets is None:
                self._restored[usage.key_id] = usage, now_s
                continue
            if buckets.requests is not None:
                buckets.requests.take((1.0 - usage.requests_left) * buckets.requests.per_minute, now_s)
            if buckets.tokens is not None:
                buckets.tokens.take((1.0 - usage.tokens_left) * buckets.tokens.per_minute, now_s)

    def _of(self, entry: KeyEntry, now_s: float, num_gateways: int) -> _KeyBuckets:
        buckets = self._buckets.get(entry.key_id)
        left = KeyUsage(key_id=entry.key_id)
        if buckets is None:
            buckets = self._buckets[entry.key_id] = _KeyBuckets(None, None)
            if (restored := self._restored.pop(entry.key_id, None)) is not None:
                left = restored[0].after(now_s - restored[1])
        requests, tokens = entry.requests_per_minute, entry.tokens_per_minute
        buckets.requests = _fitted(buckets.requests, requests, num_gateways, now_s, left.requests_left)
        buckets.tokens = _fitted(buckets.tokens, tokens, num_gateways, now_s, left.tokens_left)
        return buckets


def _usage(key_id: str, buckets: _KeyBuckets, now_s: float) -> KeyUsage:
    requests, tokens = buckets.requests, buckets.tokens
    return KeyUsage(
        key_id=key_id,
        requests_left=1.0 if requests is None else requests.left(now_s),
        tokens_left=1.0 if tokens is None else tokens.left(now_s),
    )


def _fitted(
    bucket: _Bucket | None, per_minute: int | None, num_gateways: int, now_s: float, left: float
) -> _Bucket | None:
    """`left` is the share that a new bucket begins with."""
    if per_minute is None:
        return None
    share = max(1.0, per_minute / num_gateways)
    if bucket is None:
        return _Bucket(share, now_s, left)
    if bucket.per_minute != share:
        bucket.resize(share, now_s)
    return bucket


def _status(entry: KeyEntry, buckets: _KeyBuckets, now_s: float, *, retry_after_s: int | None) -> RateStatus:
    requests, tokens = buckets.requests, buckets.tokens
    return RateStatus(
        limit_requests=entry.requests_per_minute,
        remaining_requests=max(0, int(requests.level(now_s))) if requests is not None else 0,
        reset_requests_s=requests.wait_s(requests.per_minute, now_s) if requests is not None else 0.0,
        limit_tokens=entry.tokens_per_minute,
        remaining_tokens=max(0, int(tokens.level(now_s))) if tokens is not None else 0,
        reset_tokens_s=tokens.wait_s(tokens.per_minute, now_s) if tokens is not None else 0.0,
        retry_after_s=retry_after_s,
    )
