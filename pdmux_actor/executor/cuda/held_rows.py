"""Rows of a batch's sequences on the host, from one decode launch to the next."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pdmux_actor.scheduling.sequence import TokenSequence


class HeldRows:
    """A sequence's rows seldom change between two steps, and to make an array of a list costs far more than to see that
    it is the same as before: only places whose rows changed are written again.
    """

    def __init__(self, num_places: int, max_rows: int) -> None:
        """`max_rows` is the most rows that a sequence can hold."""
        self._table = np.zeros((num_places, max_rows), dtype=np.int32)
        self._known: list[list[int]] = [[] for _ in range(num_places)]

    def of(self, sequences: Sequence[TokenSequence]) -> tuple[npt.NDArray[np.int32], int]:
        """Rows `[num_places, stride]`, valid until the next call, and the stride. What lies beyond a sequence's rows is
        never read.
        """
        known, table = self._known, self._table
        for place, sequence in enumerate(sequences):
            if known[place] != sequence.rows:
                known[place] = sequence.rows.copy()
                table[place, : len(sequence.rows)] = sequence.rows
        stride = max((len(sequence.rows) for sequence in sequences), default=1)
        return table[:, :stride], stride
