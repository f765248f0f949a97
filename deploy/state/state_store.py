"""Defines the store of what a control loop must not forget: documents by name, and no more."""

from typing import Protocol


class StateNotKept(Exception):
    """The store cannot be read or written now. `reason` is one line with the place and the remedy."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class StateStore(Protocol):
    """Keeps each document whole: a write that fails leaves the document before it. Calls block for seconds at most and
    come from one thread at a time; each raises StateNotKept.
    """

    @property
    def begun(self) -> int:
        """Counts how often it began empty: what was written before is gone then."""
        ...

    def read(self, name: str) -> bytes | None:
        """None: there is none of that name."""
        ...

    def write(self, name: str, document: bytes) -> None: ...

    def close(self) -> None:
        """Never raises."""
        ...
