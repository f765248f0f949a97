"""Keeps outputs with a form to UTF-8: xgrammar lets surrogates and overlong characters pass."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

# After these bytes fewer may follow than the 0x80 to 0xBF that follow others (RFC 3629): first and last.
_NARROW: Mapping[int, tuple[int, int]] = {
    0xE0: (0xA0, 0xBF),
    0xED: (0x80, 0x9F),
    0xF0: (0x90, 0xBF),
    0xF4: (0x80, 0x8F),
}
_NEVER = frozenset((0xC0, 0xC1, *range(0xF5, 0x100)))


class Utf8Tokens:
    """One per model's tokens. A token may begin or end in the middle of a character."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        """Takes the bytes of each token, empty where that is no text."""
        self._last = np.array([text[-1] if text else 0 for text in texts], dtype=np.uint8)
        first = np.array([text[0] if text else 0 for text in texts], dtype=np.uint8)
        size = -(-len(texts) // 32) * 32
        self._after: dict[int, npt.NDArray[np.int32]] = {}
        for byte, (least, most) in _NARROW.items():
            fits = np.zeros(size, dtype=np.uint8)
            fits[: len(texts)] = (first >= least) & (first <= most)
            self._after[byte] = np.packbits(fits, bitorder="little").view(np.int32)

    def restrict(self, last_token_id: int, words: npt.NDArray[np.int32]) -> None:
        """Takes what cannot follow the last byte so far out of the tokens that may come."""
        fitting = self._after.get(int(self._last[last_token_id]))
        if fitting is not None and (words & fitting).any():
            words &= fitting


def is_part_of_utf8(text: bytes) -> bool:
    """False for bytes that stand in no text, wherever it is cut."""
    return _NEVER.isdisjoint(text) and all(
        byte not in _NARROW or _NARROW[byte][0] <= after <= _NARROW[byte][1] for byte, after in pairwise(text)
    )
