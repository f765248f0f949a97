"""Chunks and decoding sequences of one launch as flat arrays, chunks first: what an eager forward pass reads."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pdmux_actor.executor.cuda.device_sampler import SamplingRows, output_counts
from pdmux_actor.executor.cuda.host_stage import Arrays, HostStage
from pdmux_actor.executor.packed_batch import prompt_pieces
from pdmux_actor.models.rope import PromptPiece
from pdmux_actor.scheduling.launch import Chunk
from pdmux_actor.scheduling.sequence import TokenSequence

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkExtent:
    """Tokens `[first, first + length)` of the batch, of a sequence whose KV reaches `context_tokens` with them."""

    first: int
    length: int
    context_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceBatch:
    """`tensors`, int32 unless said: token_ids, positions, rows [tokens]; query_ends, context_ends [chunks + 1]
    (cumulative); context_rows, context_offsets [all chunks' contexts], chunk_rows [chunks * most rows] and
    context_tokens [chunks], where a chunk continues a cached prefix;
    decode_rows [decodes * row_stride], row_stride [1], decode_contexts [decodes]; sampled [rows] (places of the tokens
    whose logits are wanted); begun_rows [n], begun_blocks [n, blocks_per_row]; SamplingRows' arrays and
    output_counts. `arrays` are the same on the host.
    """

    tensors: Mapping[str, Tensor]
    arrays: Arrays
    chunks: tuple[ChunkExtent, ...]
    num_decodes: int
    has_prefix: bool
    sampling: SamplingRows
    begun_rows: npt.NDArray[np.int64]
    prompts: tuple[PromptPiece, ...]

    @property
    def num_chunk_tokens(self) -> int:
        return sum(chunk.length for chunk in self.chunks)


def stage_batch(
    stage: HostStage,
    chunks: Sequence[Chunk],
    decodes: Sequence[TokenSequence],
    row_table: npt.NDArray[np.int64],
    tokens_per_row: int,
) -> DeviceBatch:
    """Rows whose first token this launch writes are uploaded with it: a row's blocks change only before that."""
    extents = tuple(_extents(chunks))
    token_ids = [c.sequence.token_ids[c.start : c.start + c.length] for c in chunks]
    positions = [np.arange(c.start, c.start + c.length) for c in chunks]
    rows = [_rows_of(c.sequence, c.start, c.start + c.length, tokens_per_row) for c in chunks]
    if decodes:
        token_ids.append([s.token_ids[-1] for s in decodes])
        positions.append(np.array([len(s.token_ids) - 1 for s in decodes]))
        rows.append(np.array([s.rows[(len(s.token_ids) - 1) // tokens_per_row] for s in decodes]))
    all_positions, all_rows = np.concatenate(positions), np.concatenate(rows)
    begun = all_rows[all_positions % tokens_per_row == 0]
    has_prefix = any(c.start > 0 for c in chunks)
    contexts = [np.arange(e.context_tokens) for e in extents] if has_prefix else []
    context_rows = [
        _rows_of(c.sequence, 0, e.context_tokens, tokens_per_row) for c, e in zip(chunks, extents, strict=True)
    ]
    sampled = [e.first + e.length - 1 for c, e in zip(chunks, extents, strict=True) if c.samples]
    num_chunk_tokens = sum(e.length for e in extents)
    sampling_sequences = [*(c.sequence for c in chunks if c.samples), *decodes]
    sampling = SamplingRows.of(sampling_sequences, device=stage.device)
    decode_rows, row_stride = padded_rows(decodes, len(decodes))
    chunk_rows, _ = padded_rows([c.sequence for c in chunks] if has_prefix else [], len(chunks))
    arrays: dict[str, npt.NDArray[np.generic]] = {
        "token_ids": _int32([i for ids in token_ids for i in ids]),
        "positions": _int32(all_positions),
        "rows": _int32(all_rows),
        "query_ends": _int32(np.cumsum([0, *(e.length for e in extents)])),
        "context_ends": _int32(np.cumsum([0, *(e.context_tokens for e in extents)])),
        "context_rows": _int32(np.concatenate(context_rows)) if has_prefix else _int32([]),
        "context_offsets": _int32(np.concatenate(contexts) % tokens_per_row) if has_prefix else _int32([]),
        "chunk_rows": chunk_rows.reshape(-1) if has_prefix else _int32([]),
        "context_tokens": _int32([e.context_tokens for e in extents]),
        "decode_rows": decode_rows.reshape(-1),
        "row_stride": _int32([row_stride]),
        "decode_contexts": _int32([len(s.token_ids) for s in decodes]),
        "sampled": _int32([*sampled, *range(num_chunk_tokens, num_chunk_tokens + len(decodes))]),
        "begun_rows": begun.astype(np.int64),
        "begun_blocks": _int32(row_table[begun]),
        "output_counts": output_counts(sampling_sequences, len(sampling_sequences)),
        **sampling.arrays,
    }
    return DeviceBatch(
        tensors=stage.send(arrays),
        arrays=arrays,
        chunks=extents,
        num_decodes=len(decodes),
        has_prefix=has_prefix,
        sampling=sampling,
        begun_rows=begun.astype(np.int64),
        prompts=tuple(prompt_pieces(chunks)),
    )


def padded_rows(sequences: Sequence[TokenSequence], num_sequences: int) -> tuple[Ints, int]:
    """Rows `[num_sequences, stride]` padded with 0, which is never read, and the stride."""
    stride = max((len(s.rows) for s in sequences), default=1)
    rows = np.zeros((num_sequences, stride), dtype=np.int32)
    for i, sequence in enumerate(sequences):
        rows[i, : len(sequence.rows)] = sequence.rows
    return rows, stride


def _extents(chunks: Sequence[Chunk]) -> Iterator[ChunkExtent]:
    first = 0
    for chunk in chunks:
        yield ChunkExtent(first=first, length=chunk.length, context_tokens=chunk.start + chunk.length)
        first += chunk.length


def _rows_of(sequence: TokenSequence, start: int, end: int, tokens_per_row: int) -> npt.NDArray[np.int64]:
    """The row of each token `[start, end)`."""
    held = np.array(sequence.rows[: -(-end // tokens_per_row)], dtype=np.int64)
    return held[np.arange(start, end) // tokens_per_row]


def _int32(values: npt.ArrayLike) -> Ints:
    return np.asarray(values, dtype=np.int32)
