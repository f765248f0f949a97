"""Keeps what is left of API keys' rates for gateways that come: a restart pays no debt. Sans-I/O."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from router.access.rate_limits import KeyUsage

FORMAT = 1
_SILENT_S = 10.0  # a gateway that tells nothing for so long is gone, and its part of the rates with it


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptUsage:
    """`noted_s` is a time of day."""

    noted_s: float
    keys: tuple[KeyUsage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    at_s: float
    keys: Mapping[str, KeyUsage]


class KeyUsages:
    """Each gateway tells of its own part of every rate. What the fleet has left is the mean of the parts; a part whose
    gateway is gone counts until it would be whole again.
    """

    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}

    def tell(self, gateway_id: str, keys: Iterable[KeyUsage], now_s: float) -> None:
        self._told[gateway_id] = _Told(at_s=now_s, keys={usage.key_id: usage for usage in keys})

    def left(self, now_s: float) -> tuple[KeyUsage, ...]:
        """Returns, of keys that have used something, what a gateway that begins now may use."""
        self._forget(now_s)
        parts = [{k: u.after(now_s - told.at_s) for k, u in told.keys.items()} for told in self._told.values()]
        names = sorted({key for part in parts for key in part})
        left = (_mean(name, [part.get(name, KeyUsage(key_id=name)) for part in parts]) for name in names)
        return tuple(usage for usage in left if not usage.is_whole)

    def kept(self, now_s: float) -> KeptUsage:
        return KeptUsage(noted_s=now_s, keys=self.left(now_s))

    def restore(self, kept: KeptUsage, now_s: float) -> None:
        """Begins with what a predecessor kept. A clock that was set back makes no debt longer."""
        self.tell("", kept.keys, min(now_s, kept.noted_s))

    def _forget(self, now_s: float) -> None:
        # Nor does one that is set back now.
        self._told = {g: _Told(at_s=min(now_s, told.at_s), keys=told.keys) for g, told in self._told.items()}

        def counts(told: _Told) -> bool:
            silent_s = now_s - told.at_s
            return silent_s < _SILENT_S or any(not u.after(silent_s).is_whole for u in told.keys.values())

        self._told = {gateway_id: told for gateway_id, told in self._told.items() if counts(told)}


def _mean(key_id: str, parts: list[KeyUsage]) -> KeyUsage:
    return KeyUsage(
        key_id=key_id,
        requests_left=sum(part.requests_left for part in parts) / len(parts),
        tokens_left=sum(part.tokens_left for part in parts) / len(parts),
    )
