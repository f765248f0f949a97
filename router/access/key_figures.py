"""Counts what each API key has asked for and used. By id: two keys may bear one name. Says how
evenly they are served.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from router.access.api_keys import KeyEntry
from router.access.rate_limits import RateStatus

WINDOW_S = 300.0


_SLOT_S = 10.0


class RecentTokens:
    """Holds a count per ten seconds: a token is forgotten up to so much later."""

    def __init__(self) -> None:
        self._slots: deque[tuple[int, int]] = deque()

    def add(self, tokens: int, now_s: float) -> None:
        number = int(now_s // _SLOT_S)
        if self._slots and self._slots[-1][0] == number:
            tokens += self._slots.pop()[1]
        self._slots.append((number, tokens))
        self._forget(now_s)

    def total(self, now_s: float) -> int:
        self._forget(now_s)
        return sum(tokens for _, tokens in self._slots)

    def _forget(self, now_s: float) -> None:
        oldest = (now_s - WINDOW_S) // _SLOT_S
        while self._slots and self._slots[0][0] < oldest:
            self._slots.popleft()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFigures:
    """A key's name and rates, and since its gateways started: requests let in, those beyond its rates or for models
    that are not its own, and tokens of prompts and answers. `remaining_*` are of the minute; None: not limited.
    `recent_tokens` are of the last WINDOW_S, counted where an answer ends. `waiting_tokens` are the prompts that wait
    at the gateways for their turn now; keys of one name wait together.
    """

    key_id: str
    name: str
    is_admin: bool
    models: tuple[str, ...] | None
    limit_requests: int | None
    limit_tokens: int | None
    remaining_requests: int | None = None
    remaining_tokens: int | None = None
    requests: int = 0
    tokens: int = 0
    rate_limited: int = 0
    not_allowed: int = 0
    recent_tokens: int = 0
    waiting_tokens: int = 0


@dataclass(slots=True, eq=False)
class _Counted:
    requests: int = 0
    tokens: int = 0
    rate_limited: int = 0
    not_allowed: int = 0
    recent: RecentTokens = field(default_factory=RecentTokens)


class KeyCounts:
    """One entry of each key that was used and is in force."""

    def __init__(self) -> None:
        self._counts: dict[str, _Counted] = {}

    def keep(self, key_ids: frozenset[str]) -> None:
        self._counts = {k: c for k, c in self._counts.items() if k in key_ids}

    def entered(self, key_id: str) -> None:
        self._of(key_id).requests += 1

    def rate_limited(self, key_id: str) -> None:
        self._of(key_id).rate_limited += 1

    def not_allowed(self, key_id: str) -> None:
        self._of(key_id).not_allowed += 1

    def spent(self, key_id: str, tokens: int, now_s: float) -> None:
        if (counted := self._counts.get(key_id)) is not None:
            counted.tokens += tokens
            counted.recent.add(tokens, now_s)

    def figures(self, entry: KeyEntry, rate: RateStatus, now_s: float, *, waiting_tokens: int) -> KeyFigures:
        counted = self._counts.get(entry.key_id, _Counted())
        return KeyFigures(
            key_id=entry.key_id,
            name=entry.name,
            is_admin=entry.is_admin,
            models=None if entry.models is None else tuple(sorted(entry.models)),
            limit_requests=rate.limit_requests,
            limit_tokens=rate.limit_tokens,
            remaining_requests=None if rate.limit_requests is None else rate.remaining_requests,
            remaining_tokens=None if rate.limit_tokens is None else rate.remaining_tokens,
            requests=counted.requests,
            tokens=counted.tokens,
            rate_limited=counted.rate_limited,
            not_allowed=counted.not_allowed,
            recent_tokens=counted.recent.total(now_s),
            waiting_tokens=waiting_tokens,
        )

    def _of(self, key_id: str) -> _Counted:
        return self._counts.setdefault(key_id, _Counted())


def summed_figures(of_gateways: Iterable[Iterable[KeyFigures]]) -> tuple[KeyFigures, ...]:
    """Sums what gateways count, of the keys that all know; each has its part of a rate. By name."""
    found: dict[str, KeyFigures] = {}
    for figures in of_gateways:
        for key in figures:
            known = found.get(key.key_id)
            found[key.key_id] = key if known is None else _sum(known, key)
    return tuple(sorted(found.values(), key=lambda k: (k.name, k.key_id)))


_SUMMED = ("requests", "tokens", "rate_limited", "not_allowed", "recent_tokens", "waiting_tokens")


def _sum(one: KeyFigures, other: KeyFigures) -> KeyFigures:
    sums: dict[str, Any] = {name: getattr(one, name) + getattr(other, name) for name in _SUMMED}
    return replace(
        one,
        remaining_requests=_both(one.remaining_requests, other.remaining_requests),
        remaining_tokens=_both(one.remaining_tokens, other.remaining_tokens),
        **sums,
    )


def _both(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyShare:
    """Holds what a key got of the tokens of the last minutes; None: it asked for nothing. Keys all weigh the same: see
    KeysReport's `fair_share`.
    """

    figures: KeyFigures
    share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysReport:
    """All keys, by name. Of those that got tokens in the last `window_s`, or wait for some: `fair_share` is one over
    their number, and `jain_index` is of their tokens; None: there are none. `left_out` counts gateways whose figures
    are not in it: they do not answer now, or are of a release that tells other ones.
    """

    window_s: float
    jain_index: float | None
    fair_share: float | None
    keys: tuple[KeyShare, ...]
    left_out: int = 0


def jain_index(amounts: Sequence[float]) -> float | None:
    """Returns (sum x)^2 / (n sum x^2) of n amounts (Jain, Chiu and Hawe 1984): 1 where all get the same, 1/n where one
    gets all; None: nobody gets anything.
    """
    squares = sum(x * x for x in amounts)
    return sum(amounts) ** 2 / (len(amounts) * squares) if squares else None


def keys_report(keys: Iterable[KeyFigures], *, left_out: int = 0) -> KeysReport:
    """`keys`: of all gateways but so many."""
    known = tuple(keys)
    asking = [k for k in known if _asks(k)]
    total = sum(k.recent_tokens for k in asking)
    return KeysReport(
        window_s=WINDOW_S,
        jain_index=jain_index([k.recent_tokens for k in asking]),
        fair_share=1 / len(asking) if asking else None,
        keys=tuple(KeyShare(figures=k, share=k.recent_tokens / total if total and _asks(k) else None) for k in known),
        left_out=left_out,
    )


def _asks(key: KeyFigures) -> bool:
    return key.recent_tokens > 0 or key.waiting_tokens > 0
