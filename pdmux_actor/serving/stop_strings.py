"""Stop strings over text that arrives in pieces."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Released:
    """`text` may be shown. With `stop` it ends where that stop string, the first, began, and nothing may follow."""

    text: str
    stop: str = ""


class StopStrings:
    """Holds back whole pieces while a stop string may be forming in them."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(s for s in stop if s)
        self._pieces: list[str] = []

    @property
    def num_held_pieces(self) -> int:
        return len(self._pieces)

    def push(self, piece: str) -> Released:
        if not self._stop:
            return Released(piece)
        self._pieces.append(piece)
        held = "".join(self._pieces)
        starts = [(start, s) for s in self._stop if (start := held.find(s)) >= 0]
        if starts:
            self._pieces.clear()
            start, stop = min(starts, key=lambda found: found[0])
            return Released(held[:start], stop)
        free_chars = len(held) - max(_overlap(held, s) for s in self._stop)
        return Released(self._release(free_chars))

    def flush(self) -> str:
        text = "".join(self._pieces)
        self._pieces.clear()
        return text

    def _release(self, free_chars: int) -> str:
        """The longest run of whole pieces within `free_chars`."""
        count = length = 0
        while count < len(self._pieces) and length + len(self._pieces[count]) <= free_chars:
            length += len(self._pieces[count])
            count += 1
        text = "".join(self._pieces[:count])
        del self._pieces[:count]
        return text


def _overlap(text: str, stop: str) -> int:
    """Length of the longest proper prefix of `stop` that `text` ends with.

    >>> _overlap("abcEN", "END"), _overlap("abc", "END")
    (2, 0)
    """
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
