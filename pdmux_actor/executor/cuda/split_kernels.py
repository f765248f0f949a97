"""Cuts the contexts of a decode batch into splits, on the device: captured steps hold no lengths.

Programs of attention run in waves, as many at once as the SMs have room for. One that begins late in a short last wave
is waited for by nearly the whole GPU, so that the number of splits is chosen by the waves that it makes: 32 contexts of
8k tokens took 306 us a layer in two splits each, and 260 in three (H200, 8 KV heads).
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor


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


_TILE_TOKENS = 128
_PROGRAM_BYTES = 73 * 1024  # of an SM's shared memory, with 128 tokens at once of a 128-wide head in bfloat16
# On an H200 three programs fit an SM, and some 2.25 on each read as fast as the memory is.
_FULL_PER_SM = 2.25
# In tiles: until the first one of a program has come, and what joining splits takes.
_BEGIN_TILES, _JOIN_TILES = 1.0, 0.5
_MOST_TIMES = 2  # of the target are tried: three were never chosen in what was measured
_PLACES_AT_ONCE = 64
_LEAST_ROOM = 256  # sequences: one variant of the kernel serves all smaller batches


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitList:
    """Splits of all sequences, one after the other. sequences: int32 [most splits], the sequence of each split, and
    the number of sequences where there are fewer splits; firsts: int32 [sequences + 1], the first split of each.
    """

    sequences: Tensor
    firsts: Tensor


def target_splits(kv_heads: int, sms: int) -> int:
    """Returns how many even splits of a batch's tokens make two programs for every SM."""
    return max(1, -(-2 * sms // kv_heads))


def programs_per_sm(device: torch.device) -> float:
    """Returns how many programs of attention an SM has room for; of no GPU, as of an H200."""
    if device.type != "cuda":
        return 3.0
    shared_bytes: int = torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor
    return float(max(1, shared_bytes // _PROGRAM_BYTES))


def split_list(context_tokens: Tensor, target: int) -> SplitList:
    """Returns splits of `context_tokens` (int32 [sequences], 0: padding): so many that they have at most 1 / `target`
    of the batch's tokens each, rounded up to tiles, or half of it, by what takes the shortest. Each sequence ends a
    split. Nothing here waits for the device.
    """
    num_sequences, device = len(context_tokens), context_tokens.device
    num_places, at_once = _MOST_TIMES * target + num_sequences, programs_per_sm(device)
    found = SplitList(
        sequences=torch.empty(num_places, dtype=torch.int32, device=device),
        firsts=torch.empty(num_sequences + 1, dtype=torch.int32, device=device),
    )
    _split_list_kernel[(1,)](
        context_tokens,
        found.sequences,
        found.firsts,
        num_sequences,
        target,
        num_places,
        SEQUENCES=max(_LEAST_ROOM, triton.next_power_of_2(num_sequences)),
        TILE_TOKENS=_TILE_TOKENS,
        MOST_TIMES=_MOST_TIMES,
        PLACES_AT_ONCE=_PLACES_AT_ONCE,
        AT_ONCE=at_once / 2,  # `target` counts two programs for each SM
        FULL=min(_FULL_PER_SM, at_once) / 2,
        BEGIN=_BEGIN_TILES,
        JOIN=_JOIN_TILES,
        num_warps=8,
    )
    return found
