"""Attention of one launch: keeps new K and V in the block pool and attends over what the pool holds."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pdmux_actor.executor.blocks_in_place import BlocksInPlace
from pdmux_actor.executor.kv_storage import KvView, Scratch, layer_blocks
from pdmux_actor.executor.packed_batch import DecodeGroup, PackedBatch, PackedChunk
from pdmux_actor.models.attention import PLAIN, AttentionTraits, chunk_attention, decode_attention, prompt_attention


@dataclass(frozen=True, slots=True)
class _ChunkReads:
    chunk: PackedChunk
    blocks: Tensor | None  # [layers, kv_heads * rows]; None: nothing is cached, no read


@dataclass(frozen=True, slots=True)
class _DecodeReads:
    first: int
    last: int
    blocks: Tensor  # [layers, sequences * kv_heads * rows]
    context_tokens: npt.NDArray[np.int64]  # [sequences]
    masks: dict[int, Tensor] = field(default_factory=dict)  # by window, [sequences, 1, 1, rows * tokens_per_row]


class PagedAttention:
    """Implements models.decoder.Attention for layers `[first_layer, last_layer)`.

    All block ids are computed here, once per launch, so that a layer costs one write and one read per chunk or group.
    """

    def __init__(
        self,
        batch: PackedBatch,
        view: KvView,
        row_table: npt.NDArray[np.int64],
        scratch: Scratch,
        first_layer: int,
        last_layer: int,
        in_place: BlocksInPlace | None = None,
    ) -> None:
        """`in_place`: what keeps and decodes without gathering; it reads exactly what is kept."""
        self._view = view
        self._scratch = scratch
        self._first_layer = first_layer
        self._offsets = batch.token_offsets
        self._in_place = in_place
        self._batch = batch

        def blocks_of(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
            return layer_blocks(row_table, rows, view.kv_heads, first_layer, last_layer)

        self._chunks = tuple(
            _ChunkReads(
                chunk, _contiguous(blocks_of(chunk.rows).transpose(1, 2, 0)).flatten(1) if chunk.start > 0 else None
            )
            for chunk in batch.chunks
        )
        if in_place is not None:
            return
        self._writes = _contiguous(blocks_of(batch.token_rows).transpose(1, 0, 2))
        self._fresh = _contiguous(blocks_of(batch.fresh_rows).transpose(1, 0, 2)).flatten(1)
        self._decodes = tuple(_decode_reads(group, blocks_of(group.rows), view) for group in batch.decodes)

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, traits: AttentionTraits = PLAIN
    ) -> Tensor:
        index = layer - self._first_layer
        if self._in_place is not None:
            return self._attend_in_place(self._in_place, layer, query, key, value, traits)
        if self._fresh.shape[1] > 0:
            self._view.clear(self._fresh[index])
        self._view.write(self._writes[index], self._offsets, key, value)
        parts = [self._attend_chunk(reads, index, query, key, value, traits) for reads in self._chunks]
        parts += [self._attend_decodes(reads, index, query, traits) for reads in self._decodes]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _attend_in_place(
        self, blocks: BlocksInPlace, layer: int, query: Tensor, key: Tensor, value: Tensor, traits: AttentionTraits
    ) -> Tensor:
        blocks.keep(layer, self._batch, key, value)
        index = layer - self._first_layer
        attended = query.new_empty(query.shape[0], query.shape[1] * query.shape[2])
        for reads in self._chunks:
            tokens = slice(reads.chunk.first, reads.chunk.first + reads.chunk.length)
            if not blocks.serves_prompts(traits):
                attended[tokens] = self._attend_chunk(reads, index, query, key, value, traits)
                continue
            keys, values = key[tokens], value[tokens]
            if reads.blocks is not None:
                keys, values = self._cached(reads, reads.blocks[index]).transpose(0, 1).unbind(dim=2)
            blocks.attend_prompt(query[tokens], keys, values, attended[tokens], traits)
        for group in self._batch.decodes:
            blocks.attend(layer, group, query, attended, traits)
        return attended

    def _cached(self, reads: _ChunkReads, blocks: Tensor) -> Tensor:
        """[kv_heads, keys, 2, head_dim] of a chunk's tokens and all before them."""
        cached = self._view.read(blocks, self._scratch)
        key_value = cached.view(self._view.kv_heads, -1, *cached.shape[2:])
        return key_value[:, : reads.chunk.start + reads.chunk.length]

    def _attend_chunk(
        self, reads: _ChunkReads, index: int, query: Tensor, key: Tensor, value: Tensor, traits: AttentionTraits
    ) -> Tensor:
        chunk = reads.chunk
        tokens = slice(chunk.first, chunk.first + chunk.length)
        if reads.blocks is None:
            return prompt_attention(query[tokens], key[tokens], value[tokens], traits)
        return chunk_attention(query[tokens], self._cached(reads, reads.blocks[index]), traits)

    def _attend_decodes(self, reads: _DecodeReads, index: int, query: Tensor, traits: AttentionTraits) -> Tensor:
        kv_heads = self._view.kv_heads
        cached = self._view.read(reads.blocks[index], self._scratch)
        key_value = cached.view(reads.last - reads.first, kv_heads, -1, *cached.shape[2:])
        queries = query[reads.first : reads.last]
        by_kv_head = queries.view(len(queries), kv_heads, -1, queries.shape[2])
        return decode_attention(by_kv_head, key_value, self._mask(reads, traits.window_tokens), traits)

    def _mask(self, reads: _DecodeReads, window_tokens: int | None) -> Tensor:
        """Made once per launch and window."""
        contexts = reads.context_tokens
        longest = int(contexts[0])  # groups are sorted by falling length
        window = min(window_tokens or longest, longest)
        if window not in reads.masks:
            num_keys = reads.blocks.shape[1] // (len(contexts) * self._view.kv_heads) * self._view.tokens_per_row
            keys = np.arange(num_keys)
            hidden = torch.from_numpy((keys >= contexts[:, None]) | (keys < contexts[:, None] - window))
            mask = torch.zeros(hidden.shape, dtype=self._view.dtype).masked_fill_(hidden, float("-inf"))
            reads.masks[window] = mask[:, None, None, :]
        return reads.masks[window]


def _decode_reads(group: DecodeGroup, blocks: npt.NDArray[np.int64], view: KvView) -> _DecodeReads:
    """`blocks` is `[sequences, rows, layers, kv_heads]`; padding rows read the zero block."""
    padded = np.where((group.rows < 0)[:, :, None, None], view.zero_block, blocks)
    return _DecodeReads(
        group.first,
        group.first + len(group.rows),
        _contiguous(padded.transpose(2, 0, 3, 1)).flatten(1),
        group.context_tokens,
    )


def _contiguous(array: npt.NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))
