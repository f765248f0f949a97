"""Attention of a launch on the device: keeps new K and V in the pool and attends over what the pool holds."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pdmux_actor.executor.cuda.decode_kernels import decode_attention
from pdmux_actor.executor.cuda.device_batch import DeviceBatch
from pdmux_actor.executor.cuda.kv_kernels import gather_kv, store_kv
from pdmux_actor.executor.cuda.prompt_attention import varlen_attention
from pdmux_actor.executor.cuda.split_list import SplitList, split_list
from pdmux_actor.models.attention_traits import PLAIN, AttentionTraits


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceKv:
    """The pool as one model sees it. pool: [blocks, elements of the model's dtype]; table: int32 [max_rows,
    blocks_per_row], the blocks of the rows marked in `on_device`.
    """

    pool: Tensor
    table: Tensor
    kv_heads: int
    head_dim: int
    tokens_per_row: int
    on_device: npt.NDArray[np.bool_]  # [max_rows]

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

    def __init__(self, kv: DeviceKv, batch: DeviceBatch, num_splits: int) -> None:
        self._kv = kv
        self._batch = batch
        self._splits = split_list(batch.tensors["decode_contexts"], num_splits) if batch.num_decodes else None

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, traits: AttentionTraits = PLAIN
    ) -> Tensor:
        tensors, num_chunk_tokens = self._batch.tensors, self._batch.num_chunk_tokens
        query = traits.scaled(query)
        self._kv.store(layer, tensors["rows"], tensors["positions"], key, value)
        parts = []
        if self._batch.chunks:
            context_key, context_value = key[:num_chunk_tokens], value[:num_chunk_tokens]
            if self._batch.has_prefix:
                context_key, context_value = gather_kv(
                    self._kv.pool,
                    self._kv.table,
                    tensors["context_rows"],
                    tensors["context_offsets"],
                    layer=layer,
                    kv_heads=self._kv.kv_heads,
                    head_dim=self._kv.head_dim,
                )
            ends = tensors["query_ends"], tensors["context_ends"]
            parts.append(
                varlen_attention(query[:num_chunk_tokens], context_key, context_value, *ends, self._batch.chunks)
            )
        if self._splits is not None:
            parts.append(
                self._kv.attend_decodes(
                    layer,
                    query[num_chunk_tokens:],
                    tensors["decode_rows"],
                    tensors["row_stride"],
                    tensors["decode_contexts"],
                    self._splits,
                )
            )
        return parts[0] if len(parts) == 1 else torch.cat(parts)
