"""The logits of a model's decode steps, at one place for all graphs that write or read them.

Each graph would keep its own otherwise: 131 MB at 256 sequences and 128,000 tokens, times buckets, partitions and kinds
of sampling. A model has one decode launch in flight at a time, so that one place is enough.
"""

import torch
from torch import Tensor


class SharedLogits:
    """Has room for `most_rows` rows from the first use on; a larger batch has a place of its own."""

    def __init__(self, most_rows: int) -> None:
        self._most_rows = most_rows
        self._buffers: dict[int, Tensor] = {}  # they stay: captured steps read and write them

    def hold(self, logits: Tensor) -> Tensor:
        """Returns a copy of `logits` [rows, vocab_size] at the place of all batches with so many rows."""
        num_rows, vocab_size = logits.shape
        room = max(num_rows, self._most_rows)
        if room not in self._buffers:
            self._buffers[room] = torch.empty(room, vocab_size, dtype=logits.dtype, device=logits.device)
        return self._buffers[room][:num_rows].copy_(logits)
