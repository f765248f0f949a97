"""Rows of a bucket's sequences as the device has them, so that a launch sends what is new only."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pdmux_actor.scheduling.sequence import TokenSequence


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRows:
    """`rows[i]` belongs to place `places[i]` of the device's table, flat: a sequence's first one is a multiple of the
    table's width. `changed`: places of the sequences among the batch's.
    """

    places: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int32]
    changed: tuple[int, ...]


_NOTHING_NEW = NewRows(places=np.zeros(0, dtype=np.int64), rows=np.zeros(0, dtype=np.int32), changed=())


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
        places, rows, changed = list[npt.NDArray[np.int64]](), list[npt.NDArray[np.int32]](), list[int]()
        for place, sequence in enumerate(sequences):
            known = self._known[place]
            if known == sequence.rows:
                continue
            first = len(known) if sequence.rows[: len(known)] == known else 0
            end = len(sequence.rows)
            self._known[place] = sequence.rows.copy()
            self.table[place, first:end] = sequence.rows[first:]
            places.append(np.arange(first, end) + place * self.max_rows)
            rows.append(self.table[place, first:end])
            changed.append(place)
        if not changed:
            return _NOTHING_NEW
        return NewRows(places=np.concatenate(places), rows=np.concatenate(rows), changed=tuple(changed))

    def forget(self) -> None:
        """The device may not have what was sent."""
        for known in self._known:
            known.clear()
