"""Attention of a launch on the device: keeps new K and V in the pool and attends over what the pool holds."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pdmux_actor.executor.cuda.decode_kernels import decode_attention
from pdmux_actor.executor.cuda.device_batch import DeviceBatch
from pdmux_actor.executor.cuda.kv_kernels import gather_kv, store_kv
from pdmux_actor.executor.cuda.prefix_pages import PagedContexts, PagedFlash, attend_pages, is_worth_paging
from pdmux_actor.executor.cuda.prompt_attention import varlen_attention
from pdmux_actor.executor.cuda.split_list import SplitList, split_list
from pdmux_actor.models.attention_traits import PLAIN, AttentionTraits
from pdmux_actor.models.workspace import Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceKv:
    """The pool as one model sees it. pool: [blocks, elements of the model's dtype]; table: int32 [max_rows,
    blocks_per_row], the blocks of the rows marked in `on_device`. `flash`: reads blocks as pages; None: nothing does.
    """

    pool: Tensor
    table: Tensor
    kv_heads: int
    head_dim: int
    tokens_per_row: int
    on_device: npt.NDArray[np.bool_]  # [max_rows]
    flash: PagedFlash | None = None

    def upload(self, rows: npt.NDArray[np.int64], sent_rows: Tensor, sent_blocks: Tensor) -> None:
        """Rows that were sent to the device with a launch."""
        if len(rows):
            self.table.index_copy_(0, sent_rows, sent_blocks)
            self.on_device[rows] = True

    def upload_missing(self, rows: npt.NDArray[np.int32], row_table: npt.NDArray[np.int64]) -> None:
        """Waits for the copy: outside the hot path."""
        missing = rows[~self.on_device[rows]]
        blocks = torch.from_numpy(row_table[missing].astype(np.int32)).to(self.table.device)
        self.table[torch.from_numpy(missing.astype(np.int64)).to(self.table.device)] = blocks
        self.on_device[missing] = True

    def store(self, layer: int, rows: Tensor, positions: Tensor, key: Tensor, value: Tensor) -> None:
        store_kv(self.pool, self.table, rows, positions, key, value, layer=layer, tokens_per_row=self.tokens_per_row)

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


class BatchAttention:
    """Implements models.decoder.Attention for a launch of chunks and decodes."""

    def __init__(self, kv: DeviceKv, batch: DeviceBatch, num_splits: int, workspace: Workspace) -> None:
        self._kv = kv
        self._workspace = workspace
        self._batch = batch
        self._splits = split_list(batch.tensors["decode_contexts"], num_splits) if batch.num_decodes else None

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, traits: AttentionTraits = PLAIN
    ) -> Tensor:
        tensors, num_chunk_tokens = self._batch.tensors, self._batch.num_chunk_tokens
        query = traits.scaled(query)
        self._kv.store(layer, tensors["rows"], tensors["positions"], key, value)
        attended = self._workspace.empty(tuple(query.shape), query.dtype, query.device)
        if self._batch.chunks:
            new = slice(num_chunk_tokens)
            self._attend_chunks(layer, query[new], key[new], value[new], attended[new])
        if self._splits is not None:
            of_decodes = self._kv.attend_decodes(
                layer,
                query[num_chunk_tokens:],
                tensors["decode_rows"],
                tensors["row_stride"],
                tensors["decode_contexts"],
                self._splits,
            )
            attended[num_chunk_tokens:].copy_(of_decodes.view(-1, *query.shape[1:]))
        return attended.flatten(1)

    def _attend_chunks(self, layer: int, query: Tensor, key: Tensor, value: Tensor, attended: Tensor) -> None:
        kv, tensors, chunks = self._kv, self._batch.tensors, self._batch.chunks
        has_prefix, ends = self._batch.has_prefix, tensors["query_ends"]
        if has_prefix and kv.flash is not None and is_worth_paging(chunks, query.shape[1] // kv.kv_heads):
            contexts = PagedContexts(
                chunk_rows=tensors["chunk_rows"], context_tokens=tensors["context_tokens"], query_ends=ends
            )
            attend_pages(
                kv.flash,
                query,
                kv.pool,
                kv.table,
                contexts,
                chunks,
                attended,
                layer=layer,
                kv_heads=kv.kv_heads,
                workspace=self._workspace,
            )
            return
        if has_prefix:
            key, value = gather_kv(
                kv.pool,
                kv.table,
                tensors["context_rows"],
                tensors["context_offsets"],
                layer=layer,
                kv_heads=kv.kv_heads,
                head_dim=kv.head_dim,
                workspace=self._workspace,
            )
        varlen_attention(query, key, value, ends, tensors["context_ends"], chunks, attended)
