"""Chooses the number of a batch's splits by the waves of programs that they make, and lists them: split_list.py."""

import triton
import triton.language as tl


@triton.jit
def _splits_of(tiles, most_tiles):
    """How many splits of `most_tiles` at most each sequence has."""
    return (tiles + most_tiles - 1) // most_tiles


@triton.jit
def _duration(
    tiles, splits, target, AT_ONCE: tl.constexpr, FULL: tl.constexpr, BEGIN: tl.constexpr, JOIN: tl.constexpr
):
    """In the time that a program without others at its side takes for a tile. Full waves have splits of the average
    length, the last one has one of the longest.
    """
    count = tl.sum(splits, axis=0).to(tl.float32)
    longest = tl.max((tiles + tl.maximum(splits, 1) - 1) // tl.maximum(splits, 1), axis=0).to(tl.float32)
    average = tl.sum(tiles, axis=0).to(tl.float32) / tl.maximum(count, 1.0)
    waves = tl.floor(count / (AT_ONCE * target))
    rest = count - waves * AT_ONCE * target
    duration = waves * (average * AT_ONCE / FULL + BEGIN)
    duration += tl.where(rest > 0.0, longest * tl.maximum(rest / (FULL * target), 1.0) + BEGIN, 0.0)
    return duration + tl.where(tl.max(splits, axis=0) > 1, JOIN, 0.0)


@triton.jit(do_not_specialize=["num_sequences", "target", "num_places"])
def _split_list_kernel(
    context_tokens_ptr,
    sequences_ptr,
    firsts_ptr,
    num_sequences,
    target,
    num_places,
    SEQUENCES: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    MOST_TIMES: tl.constexpr,
    PLACES_AT_ONCE: tl.constexpr,
    AT_ONCE: tl.constexpr,
    FULL: tl.constexpr,
    BEGIN: tl.constexpr,
    JOIN: tl.constexpr,
):
    at = tl.arange(0, SEQUENCES)
    is_one = at < num_sequences
    tiles = (tl.load(context_tokens_ptr + at, mask=is_one, other=0) + TILE_TOKENS - 1) // TILE_TOKENS
    total = tl.sum(tiles, axis=0)
    best_tiles = tl.maximum((total + target - 1) // target, 1)
    best = _duration(tiles, _splits_of(tiles, best_tiles), target, AT_ONCE, FULL, BEGIN, JOIN)
    for times in tl.static_range(2, MOST_TIMES + 1):
        most_tiles = tl.maximum((total + times * target - 1) // (times * target), 1)
        duration = _duration(tiles, _splits_of(tiles, most_tiles), target, AT_ONCE, FULL, BEGIN, JOIN)
        best_tiles = tl.where(duration < best, most_tiles, best_tiles)
        best = tl.minimum(duration, best)
    ends = tl.cumsum(_splits_of(tiles, best_tiles), axis=0)
    tl.store(firsts_ptr + 1 + at, ends, mask=is_one)
    tl.store(firsts_ptr + at, tl.zeros([SEQUENCES], tl.int32), mask=at == 0)
    for start in range(0, num_places, PLACES_AT_ONCE):
        places = start + tl.arange(0, PLACES_AT_ONCE)
        ended = tl.sum(((ends[None, :] <= places[:, None]) & is_one[None, :]).to(tl.int32), axis=1)
        tl.store(sequences_ptr + places, ended, mask=places < num_places)
