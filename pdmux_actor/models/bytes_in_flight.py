"""Bounds what threads that load at once hold beside what stays."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class BytesInFlight:
    """Admits at most `limit_bytes` at once, or one that is larger."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._changed = threading.Condition()

    @contextmanager
    def hold(self, num_bytes: int) -> Iterator[None]:
        """Waits until others have left room."""
        with self._changed:
            # no deadline: who holds room reads a tensor, lays it out and lets go, also when it raises
            self._changed.wait_for(lambda: not self._held_bytes or self._held_bytes + num_bytes <= self._limit_bytes)
            self._held_bytes += num_bytes
        try:
            yield
        finally:
            with self._changed:
                self._held_bytes -= num_bytes
                self._changed.notify_all()
