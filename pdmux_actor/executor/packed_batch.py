"""Flattens chunks and decoding sequences into one run of tokens, chunks first. Numpy only touches whole arrays here."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pdmux_actor.models.lora import TokenRun
from pdmux_actor.models.rope import PromptPiece
from pdmux_actor.scheduling.launch import Chunk
from pdmux_actor.scheduling.sequence import TokenSequence

Ints = npt.NDArray[np.int64]

# A decode group reads as many rows for each sequence as its longest one has. It is split where a sequence needs less
# than half of that, unless the batch is so short that another attention call costs more than the padding.
_MIN_ROWS_TO_SPLIT = 8
_PADDING_ROW = -1


def token_runs(chunks: Sequence[Chunk], decodes: Iterable[TokenSequence]) -> list[TokenRun]:
    """Returns which tokens of a batch are of which adapter: those of chunks, then one of each decoding sequence. None
    where all are the base's.
    """
    runs, first = list[TokenRun](), 0
    lengths = [(c.sequence, c.length) for c in chunks] + [(s, 1) for s in decodes]
    if not any(sequence.adapter for sequence, _ in lengths):
        return runs
    for sequence, length in lengths:
        runs.append(TokenRun(None if sequence.adapter is None else sequence.request.model, first, length))
        first += length
    return runs


def prompt_pieces(chunks: Sequence[Chunk]) -> list[PromptPiece]:
    """Returns what of a batch that starts with these chunks are prompts' tokens, not answers' that are computed
    again.
    """
    pieces, first = [], 0
    for chunk in chunks:
        num_prompt_tokens = chunk.sequence.num_prompt_tokens
        last = first + max(0, min(chunk.length, num_prompt_tokens - chunk.start))
        pieces.append(PromptPiece(first=first, last=last, prompt_tokens=num_prompt_tokens))
        first += chunk.length
    return pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedChunk:
    """Tokens `[first, first + length)` of the batch; `rows` hold the sequence's tokens `[0, start + length)`."""

    first: int
    length: int
    start: int
    rows: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeGroup:
    """Tokens `[first, first + len(context_tokens))` of the batch, one per sequence.

    `rows` is `[sequences, longest]`, padded with -1; `context_tokens` counts the new token too.
    """

    first: int
    context_tokens: Ints
    rows: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeInputs:
    """One token per sequence, longest sequence first; `order[i]` is the place of the i-th in the launch."""

    order: Ints
    positions: Ints
    rows: Ints  # [sequences, most rows], padded with -1

    @classmethod
    def of(cls, sequences: Sequence[TokenSequence]) -> "DecodeInputs":
        lengths = np.array([len(s.token_ids) for s in sequences], dtype=np.int64)
        order = np.argsort(-lengths, kind="stable")
        rows = np.full((len(sequences), max((len(s.rows) for s in sequences), default=0)), _PADDING_ROW, dtype=np.int64)
        for place, index in enumerate(order):
            held = sequences[index].rows
            rows[place, : len(held)] = held
        return cls(order=order, positions=lengths[order] - 1, rows=rows)

    def last_tokens(self, sequences: Sequence[TokenSequence]) -> Tensor:
        return torch.tensor([sequences[index].token_ids[-1] for index in self.order], dtype=torch.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedBatch:
    """`fresh_rows` get their first token from this batch and are not filled by it. `sample_tokens` are the tokens of
    the batch whose logits are wanted: of sampling chunks, then of decodes. `prompts` are what of it is prompts' tokens.
    """

    token_ids: Tensor
    positions: Tensor
    token_rows: Ints
    token_offsets: Tensor  # [tokens, 1]
    fresh_rows: Ints
    chunks: tuple[PackedChunk, ...]
    decodes: tuple[DecodeGroup, ...]
    sample_tokens: Tensor
    prompts: tuple[PromptPiece, ...] = ()

    @property
    def num_tokens(self) -> int:
        return self.token_ids.shape[0]


def pack(
    chunks: Sequence[Chunk],
    decodes: DecodeInputs,
    decode_token_ids: Tensor,
    *,
    step: int,
    tokens_per_row: int,
    max_group_rows: int,
) -> PackedBatch:
    """`decode_token_ids` are in the order of `decodes`; `step` counts the decode steps since `decodes` was made.

    A decode group reads at most `max_group_rows` rows, or one sequence.
    """
    packed_chunks = _pack_chunks(chunks, tokens_per_row)
    first_decode = sum(chunk.length for chunk in packed_chunks)
    decode_positions = decodes.positions + step
    positions = np.concatenate([np.arange(c.start, c.start + c.length) for c in packed_chunks] + [decode_positions])
    decode_rows = np.take_along_axis(decodes.rows, (decode_positions // tokens_per_row)[:, None], axis=1)[:, 0]
    rows = np.concatenate(
        [c.rows[np.arange(c.start, c.start + c.length) // tokens_per_row] for c in packed_chunks] + [decode_rows]
    )
    assert rows.min(initial=0) >= 0, "a token of the launch has no KV row"
    offsets = positions % tokens_per_row
    begun, filled = rows[offsets == 0], rows[offsets == tokens_per_row - 1]
    sampling = [p.first + p.length - 1 for c, p in zip(chunks, packed_chunks, strict=True) if c.samples]
    sample_tokens = np.concatenate((np.array(sampling, dtype=np.int64), np.arange(first_decode, len(positions))))
    return PackedBatch(
        token_ids=torch.cat((_chunk_token_ids(chunks), decode_token_ids)),
        positions=torch.from_numpy(positions),
        token_rows=rows,
        token_offsets=torch.from_numpy(offsets).unsqueeze(1),
        fresh_rows=np.setdiff1d(begun, filled),
        chunks=packed_chunks,
        decodes=_group(decodes.rows, decode_positions + 1, first_decode, tokens_per_row, max_group_rows),
        sample_tokens=torch.from_numpy(sample_tokens),
        prompts=tuple(prompt_pieces(chunks)),
    )


def _pack_chunks(chunks: Sequence[Chunk], tokens_per_row: int) -> tuple[PackedChunk, ...]:
    packed, first = [], 0
    for chunk in chunks:
        num_rows = -(-(chunk.start + chunk.length) // tokens_per_row)
        rows = np.array(chunk.sequence.rows[:num_rows], dtype=np.int64)
        assert len(rows) == num_rows, "a chunk has fewer KV rows than tokens"
        packed.append(PackedChunk(first=first, length=chunk.length, start=chunk.start, rows=rows))
        first += chunk.length
    return tuple(packed)


def _chunk_token_ids(chunks: Sequence[Chunk]) -> Tensor:
    ids: list[int] = []
    for chunk in chunks:
        ids += chunk.sequence.token_ids[chunk.start : chunk.start + chunk.length]
    return torch.tensor(ids, dtype=torch.int64)


def _group(
    rows: Ints, context_tokens: Ints, first_token: int, tokens_per_row: int, max_group_rows: int
) -> tuple[DecodeGroup, ...]:
    """Cuts sequences, sorted by falling length, into groups of similar length."""
    needed = -(-context_tokens // tokens_per_row)
    groups, start = [], 0
    for index in range(1, len(needed) + 1):
        longest = needed[start]
        if index < len(needed):
            alike = needed[index] * 2 > longest or longest < _MIN_ROWS_TO_SPLIT
            if alike and (index + 1 - start) * longest <= max_group_rows:
                continue
        groups.append(
            DecodeGroup(
                first=first_token + start,
                context_tokens=context_tokens[start:index],
                rows=np.where(
                    np.arange(longest) < needed[start:index, None], rows[start:index, :longest], _PADDING_ROW
                ),
            )
        )
        start = index
    return tuple(groups)
