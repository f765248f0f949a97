"""Attention of a launch on the device: keeps new K and V in the pool and attends over what the pool holds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from pdmux_actor.executor.cuda.device_batch import ChunkExtent, DeviceBatch
from pdmux_actor.executor.cuda.device_kv import DeviceKv
from pdmux_actor.executor.cuda.prefix_pages import PagedContexts, attend_pages, is_worth_paging
from pdmux_actor.executor.cuda.prompt_attention import varlen_attention
from pdmux_actor.executor.cuda.split_kernels import split_list
from pdmux_actor.models.attention import PLAIN, AttentionTraits
from pdmux_actor.models.workspace import Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherPiece:
    """Chunks of a batch, the first of which is number `first_chunk` there, as a batch of their own; where their tokens
    and those of their contexts lie in the whole one; and some of a layer's KV heads.
    """

    first_chunk: int
    chunks: Sequence[ChunkExtent]
    tokens: slice
    contexts: slice
    heads: range


@dataclass(frozen=True, slots=True, kw_only=True)
class _StagedPiece:
    piece: GatherPiece
    rows: Tensor
    offsets: Tensor
    query_ends: Tensor
    context_ends: Tensor


class GatheredPrefixes:
    """Serves all layers of one launch: what is the same for them is made once."""

    def __init__(self, kv: DeviceKv, batch: DeviceBatch, workspace: Workspace) -> None:
        self._kv = kv
        self._workspace = workspace
        tensors = batch.tensors
        self._pieces = [
            _StagedPiece(
                piece=piece,
                rows=tensors["context_rows"][piece.contexts],
                offsets=tensors["context_offsets"][piece.contexts],
                query_ends=_from_zero(tensors["query_ends"], piece),
                context_ends=_from_zero(tensors["context_ends"], piece),
            )
            for piece in gather_pieces(batch.chunks, kv.kv_heads, kv.most_gathered_head_tokens)
        ]

    def attend(self, layer: int, query: Tensor, attended: Tensor) -> None:
        """query: [chunks' tokens, heads, head_dim], whose keys and values are in the pool. Fills `attended`, of that
        shape.
        """
        for staged in self._pieces:
            with self._workspace.passing():
                self._attend(layer, staged, query[staged.piece.tokens], attended[staged.piece.tokens])

    def _attend(self, layer: int, staged: _StagedPiece, query: Tensor, attended: Tensor) -> None:
        heads, chunks, kv_heads = staged.piece.heads, staged.piece.chunks, self._kv.kv_heads
        key, value = self._kv.gather(layer, staged.rows, staged.offsets, heads, self._workspace)
        ends = staged.query_ends, staged.context_ends
        if len(heads) == kv_heads:
            varlen_attention(query, key, value, *ends, chunks, attended)
            return
        group = query.shape[1] // kv_heads
        of_heads = slice(group * heads.start, group * heads.stop)
        query = query[:, of_heads]
        answers = self._workspace.empty(tuple(query.shape), query.dtype, query.device)
        varlen_attention(query, key, value, *ends, chunks, answers)
        attended[:, of_heads].copy_(answers)


def _from_zero(ends: Tensor, piece: GatherPiece) -> Tensor:
    """Of cumulative ends of all chunks, those of the piece's."""
    first, last = piece.first_chunk, piece.first_chunk + len(piece.chunks)
    return ends[: last + 1] if first == 0 else ends[first : last + 1] - ends[first]


def gather_pieces(chunks: Sequence[ChunkExtent], kv_heads: int, most_head_tokens: int | None) -> Sequence[GatherPiece]:
    """Cuts what attention gathers of cached prefixes into pieces that fit the memory that is reserved for it: chunks'
    contexts together as far as they fit, of one that is too long alone some KV heads at a time, which are independent.
    A piece has `most_head_tokens` tokens times heads at most, or one head of one chunk; None: there is one piece.
    """
    pieces, first_context = list[GatherPiece](), 0
    for first, last in _groups(chunks, kv_heads, most_head_tokens):
        group, first_token = chunks[first:last], chunks[first].first
        context_tokens = sum(chunk.context_tokens for chunk in group)
        step = kv_heads if most_head_tokens is None else min(kv_heads, max(1, most_head_tokens // context_tokens))
        pieces += [
            GatherPiece(
                first_chunk=first,
                chunks=[replace(chunk, first=chunk.first - first_token) for chunk in group],
                tokens=slice(first_token, group[-1].first + group[-1].length),
                contexts=slice(first_context, first_context + context_tokens),
                heads=range(head, min(head + step, kv_heads)),
            )
            for head in range(0, kv_heads, step)
        ]
        first_context += context_tokens
    return pieces


def _groups(chunks: Sequence[ChunkExtent], kv_heads: int, most_head_tokens: int | None) -> Iterator[tuple[int, int]]:
    """Chunks from the first to before the second, of which all heads fit, or single ones."""
    first, head_tokens = 0, 0
    for number, chunk in enumerate(chunks):
        added = kv_heads * chunk.context_tokens
        if most_head_tokens is not None and number > first and head_tokens + added > most_head_tokens:
            yield first, number
            first, head_tokens = number, 0
        head_tokens += added
    yield first, len(chunks)


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
