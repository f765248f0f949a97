"""Requests and tokens per minute of each API key, as token buckets. Sans-I/O."""

import math
from dataclasses import dataclass

from router.access.api_keys import KeyEntry

_WINDOW_S = 60.0
_ROUNDING_S = 1e-6  # what floats may be off by


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

    def __init__(self, per_minute: float, now_s: float) -> None:
        self.per_minute = per_minute
        self._level = per_minute
        self._at_s = now_s

    def level(self, now_s: float) -> float:
        filled = self._level + (now_s - self._at_s) * self.per_minute / _WINDOW_S
        self._level, self._at_s = min(self.per_minute, filled), now_s
        return self._level

    def resize(self, per_minute: float, now_s: float) -> None:
        share = self.level(now_s) / self.per_minute
        self.per_minute, self._level = per_minute, share * per_minute

    def take(self, amount: float, now_s: float) -> None:
        self._level = self.level(now_s) - amount

    def wait_s(self, amount: float, now_s: float) -> float:
        """Returns the seconds until there is so much, or as much as there ever is."""
        missing = min(amount, self.per_minute) - self.level(now_s)
        wait_s = missing * _WINDOW_S / self.per_minute
        return wait_s if wait_s > _ROUNDING_S else 0.0


@dataclass(slots=True, eq=False)
class _KeyBuckets:
    requests: _Bucket | None
    tokens: _Bucket | None


class RateLimits:
    """A request takes one, and its tokens once they are known; a key in debt waits. Gateways share a rate evenly."""

    def __init__(self) -> None:
        self._buckets: dict[str, _KeyBuckets] = {}

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

    def spend(self, key_id: str, tokens: int, now_s: float) -> None:
        buckets = self._buckets.get(key_id)
        if buckets is not None and buckets.tokens is not None:
            buckets.tokens.take(float(tokens), now_s)

    def keep(self, key_ids: frozenset[str]) -> None:
        self._buckets = {k: b for k, b in self._buckets.items() if k in key_ids}

    def _of(self, entry: KeyEntry, now_s: float, num_gateways: int) -> _KeyBuckets:
        buckets = self._buckets.get(entry.key_id)
        if buckets is None:
            buckets = self._buckets[entry.key_id] = _KeyBuckets(None, None)
        buckets.requests = _fitted(buckets.requests, entry.requests_per_minute, num_gateways, now_s)
        buckets.tokens = _fitted(buckets.tokens, entry.tokens_per_minute, num_gateways, now_s)
        return buckets


def _fitted(bucket: _Bucket | None, per_minute: int | None, num_gateways: int, now_s: float) -> _Bucket | None:
    if per_minute is None:
        return None
    share = max(1.0, per_minute / num_gateways)
    if bucket is None:
        return _Bucket(share, now_s)
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
