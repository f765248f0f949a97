"""Defines what is left of an API key's rates, as gateways tell it to each other's successors."""

from dataclasses import dataclass

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
