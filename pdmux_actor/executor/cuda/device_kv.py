"""The KV pool on the device, as one model's launches read and fill it."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pdmux_actor.executor.cuda.decode_kernels import decode_attention
from pdmux_actor.executor.cuda.host_stage import sent
from pdmux_actor.executor.cuda.kv_kernels import gather_kv, store_kv
from pdmux_actor.executor.cuda.prefix_pages import PagedFlash
from pdmux_actor.executor.cuda.split_kernels import SplitList
from pdmux_actor.models.workspace import Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceKv:
    """The pool as one model sees it. pool: [blocks, elements of the model's dtype]; table: int32 [max_rows,
    blocks_per_row], the blocks of the rows marked in `on_device`. `flash`: reads blocks as pages; None: nothing does.
    `gathered_bytes` of K and V of cached prefixes are gathered at a time; None: as much as there is.
    """

    pool: Tensor
    table: Tensor
    kv_heads: int
    head_dim: int
    tokens_per_row: int
    on_device: npt.NDArray[np.bool_]  # [max_rows]
    flash: PagedFlash | None = None
    gathered_bytes: int | None = None

    @property
    def most_gathered_head_tokens(self) -> int | None:
        """Tokens times KV heads."""
        token_bytes = 2 * self.head_dim * self.pool.element_size()
        return None if self.gathered_bytes is None else self.gathered_bytes // token_bytes

    def upload(self, rows: npt.NDArray[np.int64], sent_rows: Tensor, sent_blocks: Tensor) -> None:
        """Rows that were sent to the device with a launch."""
        if len(rows):
            self.table.index_copy_(0, sent_rows, sent_blocks)
            self.on_device[rows] = True

    def upload_missing(self, rows: npt.NDArray[np.int32], row_table: npt.NDArray[np.int64]) -> None:
        """Copies by themselves: outside the hot path."""
        missing, device = rows[~self.on_device[rows]], self.table.device
        blocks = sent(row_table[missing].astype(np.int32), device)
        self.table.index_copy_(0, sent(missing.astype(np.int64), device), blocks)
        self.on_device[missing] = True

    def store(self, layer: int, rows: Tensor, positions: Tensor, key: Tensor, value: Tensor) -> None:
        store_kv(self.pool, self.table, rows, positions, key, value, layer=layer, tokens_per_row=self.tokens_per_row)

    def gather(
        self, layer: int, rows: Tensor, offsets: Tensor, heads: range, workspace: Workspace
    ) -> tuple[Tensor, Tensor]:
        """K and V of some KV heads of the tokens at `offsets` of `rows`."""
        return gather_kv(
            self.pool,
            self.table,
            rows,
            offsets,
            layer=layer,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            heads=heads,
            workspace=workspace,
        )

    def attend_decodes(
        self, layer: int, query: Tensor, rows: Tensor, row_stride: Tensor, contexts: Tensor, splits: SplitList
    ) -> Tensor:
        return decode_attention(
            query,
            self.pool,
            self.table,
            rows,
            row_stride,
            contexts,
            layer=layer,
            kv_heads=self.kv_heads,
            tokens_per_row=self.tokens_per_row,
            splits=splits,
        )
