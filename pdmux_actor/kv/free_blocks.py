"""Keeps the blocks that no row has."""

import numpy as np
import numpy.typing as npt

Blocks = npt.NDArray[np.int64]


class FreeBlocks:
    """A stack of block ids. Below `_lowest` it has never been popped: place i stands for block i, written when it is
    needed.
    """

    def __init__(self, total_blocks: int) -> None:
        self._stack: Blocks = np.empty(total_blocks, dtype=np.int64)
        self._lowest = total_blocks
        self._count = total_blocks

    def pop(self, num_blocks: int) -> Blocks:
        """A view: good until the next call."""
        top = self._count
        self._count -= num_blocks
        if self._count < self._lowest:
            self._stack[self._count : self._lowest] = np.arange(self._count, self._lowest)
            self._lowest = self._count
        return self._stack[self._count : top]

    def push(self, blocks: Blocks) -> None:
        self._stack[self._count : self._count + len(blocks)] = blocks
        self._count += len(blocks)

    def all(self) -> Blocks:
        """Returns all free blocks, in no order."""
        return np.concatenate([np.arange(self._lowest), self._stack[self._lowest : self._count]])
