"""API keys: who a caller is, and what the key may do. Only hashes are kept.

A key is `mxf_<id>_<secret>`. The id is public, it finds the entry; the secret has 256 random bits, so that a plain
SHA-256 of the key is safe at rest: there is nothing to guess.
"""

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass

from router.errors import InvalidApiKey, ModelNotAllowed
from router.request_terms import Priority

_SHAPE = re.compile(r"^mxf_([0-9a-f]{12})_[A-Za-z0-9_-]{43}$")
HASH_SHAPE = r"^sha256:[0-9a-f]{64}$"
_NOBODY = "sha256:" + "0" * 64


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyEntry:
    """`models` None means all. Rates None are unlimited; tokens are those of prompts and answers. `priority` is the
    highest that its requests may ask for, and what they have when they ask for nothing beyond NORMAL. Targets tighter
    than the model's own hold only where `may_tighten_slo`.
    """

    key_id: str
    name: str
    hash: str
    models: frozenset[str] | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    priority: Priority = Priority.NORMAL
    is_admin: bool = False
    may_tighten_slo: bool = False
    expires_s: float | None = None
    """Unix time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshKey:
    """`secret` is shown once, to whoever made it."""

    key_id: str
    secret: str
    hash: str


def make_key() -> FreshKey:
    key_id = secrets.token_hex(6)
    secret = f"mxf_{key_id}_{secrets.token_urlsafe(32)}"
    return FreshKey(key_id=key_id, secret=secret, hash=hash_of(secret))


def hash_of(secret: str) -> str:
    return "sha256:" + hashlib.sha256(secret.encode()).hexdigest()


class KeyRing:
    def __init__(self, entries: Iterable[KeyEntry]) -> None:
        self._entries = {entry.key_id: entry for entry in entries}

    def __len__(self) -> int:
        return len(self._entries)

    def ids(self) -> frozenset[str]:
        return frozenset(self._entries)

    def names(self) -> frozenset[str]:
        return frozenset(entry.name for entry in self._entries.values())

    def entries(self) -> tuple[KeyEntry, ...]:
        return tuple(self._entries.values())

    def of(self, key_id: str) -> KeyEntry:
        """Raises InvalidApiKey: there is none, or it has expired."""
        entry = self._entries.get(key_id)
        if entry is None:
            raise InvalidApiKey("wrong")
        return _in_time(entry)

    def admit(self, secret: str | None) -> KeyEntry:
        """Raises:
        InvalidApiKey: it is missing, malformed, unknown or wrong; callers are not told which of the last three. Or it
            has expired, which only who holds it is told.
        """
        if not secret:
            raise InvalidApiKey("missing")
        shape = _SHAPE.match(secret)
        entry = self._entries.get(shape.group(1)) if shape is not None else None
        known = entry.hash if entry is not None else _NOBODY
        if not hmac.compare_digest(hash_of(secret), known) or entry is None:
            raise InvalidApiKey("wrong")
        return _in_time(entry)


def _in_time(entry: KeyEntry) -> KeyEntry:
    if entry.expires_s is not None and entry.expires_s <= time.time():
        raise InvalidApiKey("expired")
    return entry


def check_model(entry: KeyEntry, model: str) -> None:
    """Raises ModelNotAllowed."""
    if entry.models is not None and model not in entry.models:
        raise ModelNotAllowed(model=model)
