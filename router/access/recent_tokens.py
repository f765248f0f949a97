"""Counts tokens of the last minutes."""

from collections import deque

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
