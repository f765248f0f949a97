"""Cuts what attention gathers of cached prefixes into pieces that fit the memory that is reserved for it.

Chunks' contexts are gathered together as far as they fit. One that is too long alone comes some KV heads at a time:
heads are independent, so that nothing has to be joined.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pdmux_actor.executor.cuda.device_batch import ChunkExtent


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


def gather_pieces(chunks: Sequence[ChunkExtent], kv_heads: int, most_head_tokens: int | None) -> Sequence[GatherPiece]:
    """A piece has `most_head_tokens` tokens times heads at most, or one head of one chunk; None: there is one piece."""
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
