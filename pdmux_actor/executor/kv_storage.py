"""The bytes of the block pool, and one model's view of them.

Invariant: what a read returns beyond a sequence's last token is finite. Reads cover whole blocks and mask what is not
theirs, but a masked NaN still poisons a sum (0 * NaN). Another model's bytes are NaN patterns as likely as not, so a
block is cleared when the first of its tokens is written, unless the same write fills it.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pdmux_actor.kv.geometry import KvGeometry
from pdmux_actor.models.weights import torch_dtype
from profiler.specs import ModelSpec


class KvStorage:
    """`total_blocks` blocks of `block_bytes`, and one more that nobody writes: reads are padded with it."""

    def __init__(self, total_blocks: int, block_bytes: int) -> None:
        assert block_bytes % 4 == 0, "a block must be divisible into elements of every dtype"
        self.total_blocks = total_blocks
        self.pool = torch.zeros(total_blocks + 1, block_bytes, dtype=torch.uint8)

    def view(self, spec: ModelSpec, geometry: KvGeometry) -> "KvView":
        return KvView(self.pool, spec, geometry)


class KvView:
    """The pool as one model sees it: in a block, K and V of one head and layer lie side by side for each token."""

    def __init__(self, pool: Tensor, spec: ModelSpec, geometry: KvGeometry) -> None:
        self.kv_heads = spec.num_kv_heads
        self.tokens_per_row = geometry.tokens_per_row
        self.zero_block = pool.shape[0] - 1
        used_elements = geometry.tokens_per_row * 2 * spec.head_dim
        self._blocks = pool.view(torch_dtype(spec.dtype))[:, :used_elements]
        self._tokens = self._blocks.view(-1, geometry.tokens_per_row, 2, spec.head_dim)
        self._bytes = pool[:, : used_elements * self._blocks.itemsize]

    @property
    def row_bytes_per_layer(self) -> int:
        return self.kv_heads * self._blocks.shape[1] * self._blocks.itemsize

    @property
    def place(self) -> tuple[int, int]:
        """Returns where the pool lies in memory, and how many elements lie from one block to the next."""
        return self._blocks.data_ptr(), self._blocks.stride(0)

    @property
    def dtype(self) -> torch.dtype:
        return self._blocks.dtype

    @property
    def bytes_per_block(self) -> int:
        """Counts what a block holds, without the slack."""
        return self._bytes.shape[1]

    def copied_out(self, blocks: npt.NDArray[np.int64]) -> bytes:
        """Returns what blocks of a pool in host memory hold, without their slack."""
        return self._bytes.numpy()[blocks].tobytes()

    def copy_in(self, blocks: npt.NDArray[np.int64], data: bytes) -> None:
        self._bytes.numpy()[blocks] = np.frombuffer(data, dtype=np.uint8).reshape(len(blocks), -1)

    def clear(self, blocks: Tensor) -> None:
        self._blocks.index_fill_(0, blocks, 0)

    def write(self, blocks: Tensor, offsets: Tensor, key: Tensor, value: Tensor) -> None:
        """blocks: [tokens, kv_heads]; offsets: [tokens, 1]; key, value: [tokens, kv_heads, head_dim]."""
        self._tokens.index_put_((blocks, offsets), torch.stack((key, value), dim=2))

    def read(self, blocks: Tensor, scratch: "Scratch") -> Tensor:
        """[n] -> [n, tokens_per_row, 2, head_dim], valid until the scratch is used again."""
        width = self._blocks.shape[1]
        gathered = scratch.take(self.dtype, blocks.shape[0] * width).view(-1, width)
        torch.index_select(self._blocks, 0, blocks, out=gathered)
        return gathered.view(-1, *self._tokens.shape[1:])


class Scratch:
    """Reused memory of one lane: fresh allocations of megabytes per layer would cost a page fault per 4 kB."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def take(self, dtype: torch.dtype, num_elements: int) -> Tensor:
        num_bytes = num_elements * dtype.itemsize
        if num_bytes > self._buffer.shape[0]:
            self._buffer = torch.empty(num_bytes + num_bytes // 4 // 16 * 16, dtype=torch.uint8)
        return self._buffer[:num_bytes].view(dtype)


def layer_blocks(
    row_table: npt.NDArray[np.int64], rows: npt.NDArray[np.int64], kv_heads: int, first_layer: int, last_layer: int
) -> npt.NDArray[np.int64]:
    """Blocks `[*rows.shape, layers, kv_heads]` of `rows` in layers `[first_layer, last_layer)`."""
    columns = row_table[rows, first_layer * kv_heads : last_layer * kv_heads]
    return columns.reshape(*rows.shape, last_layer - first_layer, kv_heads)
