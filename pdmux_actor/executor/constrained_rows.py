"""The rows of a launch whose outputs have a form: their masks, filled on the host."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pdmux_actor.scheduling.sequence import TokenSequence

_WORD_BITS = 32


class ConstrainedRows:
    def __init__(self, sequences: Sequence[tuple[int, TokenSequence]], num_rows: int) -> None:
        self._sequences = sequences
        self._num_rows = num_rows

    @classmethod
    def of(cls, sequences: Sequence[TokenSequence], num_rows: int | None = None) -> "ConstrainedRows | None":
        """None when no row has a form. Padded to `num_rows`."""
        constrained = [(row, s) for row, s in enumerate(sequences) if s.constraint is not None]
        return cls(constrained, num_rows or len(sequences)) if constrained else None

    @property
    def rows(self) -> list[int]:
        """Returns those that have a form."""
        return [row for row, _ in self._sequences]

    def mask(self, logits: Tensor) -> None:
        """Logits, float32 [rows, vocab_size], of tokens that may not follow become minus infinity."""
        self.apply(self.fill(logits.shape[1]), logits)

    def fill(self, vocab_size: int) -> npt.NDArray[np.int32]:
        """Says what may follow: int32 [rows, words], bits as OutputConstraint has them, all set where no form is."""
        words = np.full((self._num_rows, -(-vocab_size // _WORD_BITS)), -1, dtype=np.int32)
        for row, sequence in self._sequences:
            assert sequence.constraint is not None
            sequence.constraint.fill_mask(sequence.token_ids, words[row])
        return words

    def apply(self, words: npt.NDArray[np.int32], logits: Tensor) -> None:
        """Keeps `logits` to what `fill` said. On a CPU, and there faster than xgrammar's loop over bits where few
        tokens may follow.
        """
        rows = self.rows
        bits = np.unpackbits(~words[rows].view(np.uint8), axis=1, count=logits.shape[1], bitorder="little")
        for row, banned in zip(rows, torch.from_numpy(bits.view(np.bool_)), strict=True):
            logits[row].masked_fill_(banned, float("-inf"))
