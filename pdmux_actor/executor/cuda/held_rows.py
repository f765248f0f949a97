"""Rows of a bucket's sequences as the device has them, so that a launch sends what is new only."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from pdmux_actor.scheduling.sequence import TokenSequence


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRows:
    """`rows[i]` belongs to place `places[i]` of the device's table, flat: a sequence's first one is a multiple of the
    table's width.
    """

    places: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int32]


_NOTHING_NEW = NewRows(places=np.zeros(0, dtype=np.int64), rows=np.zeros(0, dtype=np.int32))


class HeldRows:
    """A sequence's rows seldom change between two steps, and to make an array of a list costs far more than to see that
    it is the same as before.
    """

    def __init__(self, num_places: int, max_rows: int) -> None:
        """`max_rows` is the most rows that a sequence can hold."""
        self.max_rows = max_rows
        self.table = np.zeros((num_places, max_rows), dtype=np.int32)
        """What lies beyond a sequence's rows is never read."""
        self._known: list[list[int]] = [[] for _ in range(num_places)]

    def take(self, sequences: Sequence[TokenSequence]) -> NewRows:
        """Returns what differs from the call before, place by place, and counts as sent from now on."""
        held_rows = [sequence.rows for sequence in sequences]
        if self._known[: len(sequences)] == held_rows:
            return _NOTHING_NEW
        firsts, added = list[int](), list[list[int]]()
        for place, held in enumerate(held_rows):
            known = self._known[place]
            if known == held:
                continue
            first = len(known) if held[: len(known)] == known else 0
            self._known[place] = held.copy()
            firsts.append(place * self.max_rows + first)
            added.append(held[first:] if first else held)
        counts = np.array([len(rows) for rows in added])
        # One array of all lists: an array for each costs a large batch more than all that it holds.
        rows = np.fromiter(chain.from_iterable(added), dtype=np.int32, count=counts.sum())
        places = np.arange(len(rows)) + np.repeat(np.array(firsts) - (counts.cumsum() - counts), counts)
        self.table.reshape(-1)[places] = rows
        return NewRows(places=places, rows=rows)

    def forget(self) -> None:
        """The device may not have what was sent."""
        for known in self._known:
            known.clear()
