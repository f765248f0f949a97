"""Attention of chunks behind cached prefixes that are gathered from the pool, piece by piece."""

from dataclasses import dataclass

from torch import Tensor

from pdmux_actor.executor.cuda.device_batch import DeviceBatch
from pdmux_actor.executor.cuda.device_kv import DeviceKv
from pdmux_actor.executor.cuda.gather_pieces import GatherPiece, gather_pieces
from pdmux_actor.executor.cuda.prompt_attention import varlen_attention
from pdmux_actor.models.workspace import Workspace


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
