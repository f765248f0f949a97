"""Attention of a launch on the device: keeps new K and V in the pool and attends over what the pool holds."""

from torch import Tensor

from pdmux_actor.executor.cuda.device_batch import DeviceBatch
from pdmux_actor.executor.cuda.device_kv import DeviceKv
from pdmux_actor.executor.cuda.gathered_prefixes import GatheredPrefixes
from pdmux_actor.executor.cuda.prefix_pages import PagedContexts, attend_pages, is_worth_paging
from pdmux_actor.executor.cuda.prompt_attention import varlen_attention
from pdmux_actor.executor.cuda.split_kernels import split_list
from pdmux_actor.models.attention_traits import PLAIN, AttentionTraits
from pdmux_actor.models.workspace import Workspace


class BatchAttention:
    """Implements models.decoder.Attention for a launch of chunks and decodes."""

    def __init__(self, kv: DeviceKv, batch: DeviceBatch, num_splits: int, workspace: Workspace) -> None:
        self._kv = kv
        self._workspace = workspace
        self._batch = batch
        self._splits = split_list(batch.tensors["decode_contexts"], num_splits) if batch.num_decodes else None
        self._prefixes: GatheredPrefixes | None = None  # until a layer gathers

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
            self._prefixes = self._prefixes or GatheredPrefixes(kv, self._batch, self._workspace)
            self._prefixes.attend(layer, query, attended)
            return
        varlen_attention(query, key, value, ends, tensors["context_ends"], chunks, attended)
