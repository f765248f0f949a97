"""Gives turns to models that come and go."""

from bisect import bisect_right
from collections.abc import Iterable


class RoundRobin:
    """Round-robin by name: the next candidate after the one served last, in sorted order.

    >>> turn = RoundRobin()
    >>> [turn.take(["a", "b", "c"]), turn.take(["a", "b", "c"]), turn.take(["a", "c"]), turn.take(["a", "c"])]
    ['a', 'b', 'c', 'a']
    """

    def __init__(self) -> None:
        self._last: str | None = None

    def peek(self, candidates: Iterable[str]) -> str | None:
        ordered = sorted(candidates)
        if not ordered:
            return None
        following = 0 if self._last is None else bisect_right(ordered, self._last)
        return ordered[following % len(ordered)]

    def take(self, candidates: Iterable[str]) -> str | None:
        """Like `peek`, and the turn passes on."""
        name = self.peek(candidates)
        if name is not None:
            self._last = name
        return name
