"""What is gathered of cached prefixes at a time: everything once, and no more than there is room for."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pdmux_actor.executor.cuda.device_attention import gather_pieces
from pdmux_actor.executor.cuda.device_batch import ChunkExtent

_chunks = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 200)), min_size=1, max_size=8)


def extents(sizes: list[tuple[int, int]]) -> list[ChunkExtent]:
    """Of new and cached tokens."""
    firsts = [sum(new for new, _ in sizes[:number]) for number in range(len(sizes))]
    return [
        ChunkExtent(first=first, length=new, context_tokens=cached + new)
        for first, (new, cached) in zip(firsts, sizes, strict=True)
    ]


@given(_chunks, st.integers(1, 8), st.integers(1, 1000))
def test_gather_pieces__any_batch_and_room__every_head_of_every_chunk_once_and_within_the_room(
    sizes: list[tuple[int, int]], kv_heads: int, most_head_tokens: int
) -> None:
    chunks = extents(sizes)
    context_ends = [sum(c.context_tokens for c in chunks[: n + 1]) for n in range(len(chunks))]
    seen: Counter[tuple[int, int]] = Counter()

    for piece in gather_pieces(chunks, kv_heads, most_head_tokens):
        last = piece.first_chunk + len(piece.chunks)
        whole = chunks[piece.first_chunk : last]
        seen.update((number, head) for number in range(piece.first_chunk, last) for head in piece.heads)
        context_tokens = sum(c.context_tokens for c in whole)
        assert context_tokens * len(piece.heads) <= most_head_tokens or (len(whole), len(piece.heads)) == (1, 1)
        assert (piece.contexts.start, piece.contexts.stop) == (
            context_ends[last - 1] - context_tokens,
            context_ends[last - 1],
        )
        assert (piece.tokens.start, piece.tokens.stop) == (whole[0].first, whole[-1].first + whole[-1].length)
        assert [c.first + piece.tokens.start for c in piece.chunks] == [c.first for c in whole]
        assert [(c.length, c.context_tokens) for c in piece.chunks] == [(c.length, c.context_tokens) for c in whole]

    assert seen == Counter({(number, head): 1 for number in range(len(chunks)) for head in range(kv_heads)})


@given(_chunks, st.integers(1, 8))
def test_gather_pieces__room_for_all__one_piece(sizes: list[tuple[int, int]], kv_heads: int) -> None:
    chunks = extents(sizes)
    room = kv_heads * sum(c.context_tokens for c in chunks)

    assert len(gather_pieces(chunks, kv_heads, None)) == len(gather_pieces(chunks, kv_heads, room)) == 1
