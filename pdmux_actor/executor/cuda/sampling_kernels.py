"""Draws tokens without a sort: what top-k, top-p and a uniform number single out is searched for by its logit.

A token's key is how far its logit is below its row's highest, as an integer of the same order. Weights are integers
too: their sums are the same in any order, so that a token depends on its row alone. Every search finds the least key up
to which tokens count, or weigh, as much as asked for. A row is read four times; searches read the few tokens that were
copied out of it, all of it only where more are left than there is room for.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_CANDIDATES = 8192  # room for a row's tokens that searches read
_TILE, _SEARCHED_TILE = 1024, 512
_NUM_WARPS = 8


@triton.jit
def _keys_and_weights(row_ptr, places, count, highest, temperature):
    """2^44 is the weight of the highest: nearly 2^19 of them can be added."""
    is_token = places < count
    logits = tl.load(row_ptr + places, mask=is_token, other=float("-inf"))
    below = highest - logits
    weights = (tl.exp(-below / temperature) * 17592186044416.0).to(tl.int64)
    return is_token, below.to(tl.int32, bitcast=True), weights


@triton.jit
def _least_key(row_ptr, count, highest, temperature, by_count, wanted, TILE: tl.constexpr):
    """The least key up to which tokens weigh `wanted` or more (`by_count`: are so many)."""
    least = tl.zeros((), tl.int32)
    digits = tl.arange(0, 16)
    for i in range(8):
        shift = tl.maximum(27 - 4 * i, 0)
        ends = least + (digits << shift) + ((1 << shift) - 1)
        reached = tl.zeros((16,), tl.int64)
        for first in range(0, count, TILE):
            places = first + tl.arange(0, TILE)
            is_token, keys, weights = _keys_and_weights(row_ptr, places, count, highest, temperature)
            measures = tl.where(by_count, is_token.to(tl.int64), weights)
            reached += tl.sum(tl.where(keys[:, None] <= ends[None, :], measures[:, None], 0), axis=0)
        least += tl.sum((reached < wanted).to(tl.int32), axis=0) << shift
    return least


@triton.jit
def _weight_of(key, temperature):
    return (tl.exp(-key.to(tl.float32, bitcast=True) / temperature) * 17592186044416.0).to(tl.int64)


@triton.jit
def _before(row_ptr, count, highest, temperature, key, TILE: tl.constexpr):
    """Number and weight of the tokens above `key`."""
    tokens = tl.zeros((), tl.int64)
    weight = tl.zeros((), tl.int64)
    for first in range(0, count, TILE):
        places = first + tl.arange(0, TILE)
        is_token, keys, weights = _keys_and_weights(row_ptr, places, count, highest, temperature)
        above = is_token & (keys < key)
        tokens += tl.sum(above.to(tl.int64), axis=0)
        weight += tl.sum(tl.where(above, weights, 0), axis=0)
    return tokens, weight


@triton.jit
def _filtered_draw(row_ptr, count, highest, temperature, top_k, top_p, least_key, drawn, total, TILE: tl.constexpr):
    """Key of the token that is drawn, and its place among those of the same key. `total`: weight of all of the row."""
    if top_k > 0:
        last = _least_key(row_ptr, count, highest, temperature, True, top_k.to(tl.int64), TILE)
        tokens, weight = _before(row_ptr, count, highest, temperature, last, TILE)
        total = weight + (top_k - tokens) * _weight_of(last, temperature)
    if top_p < 1:
        wanted = tl.ceil(top_p * total.to(tl.float64)).to(tl.int64)
        last = _least_key(row_ptr, count, highest, temperature, False, wanted, TILE)
        _, weight = _before(row_ptr, count, highest, temperature, last, TILE)
        each = tl.maximum(_weight_of(last, temperature), 1)
        total = weight + tl.maximum((wanted - weight + each - 1) // each, 1) * each
    _, likely = _before(row_ptr, count, highest, temperature, least_key + 1, TILE)
    total = tl.minimum(total, likely)
    target = tl.minimum((drawn * total.to(tl.float64)).to(tl.int64), total - 1)
    key = _least_key(row_ptr, count, highest, temperature, False, target + 1, TILE)
    _, weight = _before(row_ptr, count, highest, temperature, key, TILE)
    return key, (target - weight) // tl.maximum(_weight_of(key, temperature), 1)


@triton.jit
def _weights_within(row_ptr, count, highest, temperature, depths, by_count, is_filtered, least_key, TILE: tl.constexpr):
    """Weight of all tokens, of those that min-p leaves where nothing else filters them; and how much weigh (`by_count`:
    how many are) those within each of `depths`.
    """
    total = tl.zeros((), tl.int64)
    caught = tl.zeros((4,), tl.int64)
    for first in range(0, count, TILE):
        places = first + tl.arange(0, TILE)
        is_token, keys, weights = _keys_and_weights(row_ptr, places, count, highest, temperature)
        if is_filtered:
            measures = tl.where(by_count, is_token.to(tl.int64), weights)
            within = keys.to(tl.float32, bitcast=True)[:, None] <= depths[None, :]
            caught += tl.sum(tl.where(within, measures[:, None], 0), axis=0)
        else:
            weights = tl.where(keys <= least_key, weights, 0)
        total += tl.sum(weights, axis=0)
    return total, caught


@triton.jit
def _copy_within(row_ptr, count, highest, depth, target_ptr, ROOM: tl.constexpr, TILE: tl.constexpr):
    """Copies what is within `depth` of the highest, as far as there is room. Returns how many there are."""
    copied = tl.zeros((), tl.int32)
    for first in range(0, count, TILE):
        places = first + tl.arange(0, TILE)
        logits = tl.load(row_ptr + places, mask=places < count, other=float("-inf"))
        within = (places < count) & (highest - logits <= depth)
        at = copied + tl.cumsum(within.to(tl.int32), axis=0) - 1
        tl.store(target_ptr + at, logits, mask=within & (at < ROOM))
        copied += tl.sum(within.to(tl.int32), axis=0)
    tl.debug_barrier()  # other threads read what these wrote
    return copied


@triton.jit
def _measures(row_ptr, first, count, highest, temperature, least_key, is_filtered, key, TILE: tl.constexpr):
    places = first + tl.arange(0, TILE)
    is_token, keys, weights = _keys_and_weights(row_ptr, places, count, highest, temperature)
    weights = tl.where(keys <= least_key, weights, 0)
    return tl.where(is_token, tl.where(is_filtered, (keys == key).to(tl.int64), weights), 0)


@triton.jit
def _place(row_ptr, count, highest, temperature, least_key, is_filtered, key, target, TILE: tl.constexpr):
    """The first token up to which weights, or tokens of `key` where the row `is_filtered`, are more than `target`."""
    first = tl.zeros((), tl.int32)
    before = tl.zeros((), tl.int64)
    measures = _measures(row_ptr, first, count, highest, temperature, least_key, is_filtered, key, TILE)
    in_tile = tl.sum(measures, axis=0)
    while (before + in_tile <= target) & (first + TILE < count):
        before += in_tile
        first += TILE
        measures = _measures(row_ptr, first, count, highest, temperature, least_key, is_filtered, key, TILE)
        in_tile = tl.sum(measures, axis=0)
    passed = tl.sum((before + tl.cumsum(measures, axis=0) <= target).to(tl.int32), axis=0)
    return tl.minimum(first + passed, count - 1)


@triton.jit
def _draw_kernel(
    logits_ptr,
    vocab_size,
    highest_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    least_ptr,
    uniforms_ptr,
    candidates_ptr,
    token_ids_ptr,
    CANDIDATES: tl.constexpr,
    TILE: tl.constexpr,
    SEARCHED_TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    highest = tl.load(highest_ptr + row)
    temperature = tl.load(temperature_ptr + row).to(tl.float32)
    if (temperature > 0) & (tl.abs(highest) < float("inf")):  # of NaN it is not
        temperature = tl.maximum(temperature, 1e-12)
        row_ptr = logits_ptr + row * vocab_size
        top_k = tl.minimum(tl.load(top_k_ptr + row), vocab_size)
        top_p = tl.load(top_p_ptr + row)
        drawn = tl.load(uniforms_ptr + row)
        least_key = (0.0 - tl.load(least_ptr + row)).to(tl.int32, bitcast=True)
        is_filtered = (top_k > 0) | (top_p < 1)
        depths = tl.exp2(tl.arange(0, 4).to(tl.float32)) * 2.5 * temperature
        total, caught = _weights_within(
            row_ptr, vocab_size, highest, temperature, depths, top_k > 0, is_filtered, least_key, TILE
        )
        key = tl.zeros((), tl.int32)
        target = tl.minimum((drawn * total.to(tl.float64)).to(tl.int64), total - 1)
        if is_filtered:
            needed = tl.where(top_k > 0, top_k.to(tl.int64), tl.ceil(top_p * total.to(tl.float64)).to(tl.int64))
            depth = tl.min(tl.where(caught >= needed, depths, float("inf")), axis=0)
            candidate_ptr = candidates_ptr + row * CANDIDATES
            count = _copy_within(row_ptr, vocab_size, highest, depth, candidate_ptr, CANDIDATES, TILE)
            if count <= CANDIDATES:
                key, target = _filtered_draw(
                    candidate_ptr, count, highest, temperature, top_k, top_p, least_key, drawn, total, SEARCHED_TILE
                )
            else:
                key, target = _filtered_draw(
                    row_ptr, vocab_size, highest, temperature, top_k, top_p, least_key, drawn, total, SEARCHED_TILE
                )
        place = _place(row_ptr, vocab_size, highest, temperature, least_key, is_filtered, key, target, TILE)
        tl.store(token_ids_ptr + row, place.to(tl.int64))


def draw_rows(
    logits: Tensor,
    highest: Tensor,
    likeliest: Tensor,
    temperatures: Tensor,
    top_ks: Tensor,
    top_ps: Tensor,
    uniforms: Tensor,
    log_min_ps: Tensor | None = None,
    *,
    candidates: int = _CANDIDATES,
) -> Tensor:
    """Returns token ids, int64 [rows]: `likeliest` of rows without a temperature or with logits that are not finite,
    else what sampler.py draws from the same logits: in falling order where a row has top-k or top-p, by id where
    it has none.

    logits: float32 [rows, vocab_size]; per row: `highest` logit, `likeliest` (int64), temperatures, top_ps, uniforms,
    log_min_ps (float64), top_ks (int32, 0: no limit).
    """
    num_rows, vocab_size = logits.shape
    assert vocab_size < (1 << 19) - 1, "weights of more tokens do not add up in 63 bits"
    assert logits.is_contiguous(), "a row's logits follow the last row's"
    token_ids = likeliest.clone()
    if num_rows:
        _draw_kernel[(num_rows,)](
            logits,
            vocab_size,
            highest,
            temperatures,
            top_ks,
            top_ps,
            _least_below(highest, temperatures, log_min_ps),
            uniforms,
            torch.empty(num_rows, candidates, dtype=logits.dtype, device=logits.device),
            token_ids,
            CANDIDATES=candidates,
            TILE=_TILE,
            SEARCHED_TILE=_SEARCHED_TILE,
            num_warps=_NUM_WARPS,
        )
    return token_ids


def _least_below(highest: Tensor, temperatures: Tensor, log_min_ps: Tensor | None) -> Tensor:
    """The least that min-p leaves of a logit less its row's highest: the first float32 from the quotient on."""
    if log_min_ps is None:
        return torch.full_like(highest, float("-inf"))
    exact = log_min_ps * temperatures.clamp(min=1e-12)
    rounded = exact.float()
    return torch.where(rounded.double() < exact, torch.nextafter(rounded, torch.zeros_like(rounded)), rounded)


@triton.jit
def _mix(values):
    mixed = values + 0x9E3779B97F4A7C15
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB
    return mixed ^ (mixed >> 31)


@triton.jit
def _uniform_kernel(seeds_ptr, indices_ptr, uniforms_ptr):
    row = tl.program_id(0)
    seed = tl.load(seeds_ptr + row).to(tl.uint64, bitcast=True)
    index = tl.load(indices_ptr + row).to(tl.int64).to(tl.uint64, bitcast=True)
    mixed = _mix(_mix(seed) ^ index)
    tl.store(uniforms_ptr + row, (mixed >> 11).to(tl.float64) * 1.1102230246251565e-16)  # 2^-53


def uniform_numbers(seeds: Tensor, indices: Tensor) -> Tensor:
    """float64 [rows]. seeds: int64, the bits of the CPU's uint64; indices: int32, of a request's output tokens."""
    uniforms = torch.empty(seeds.shape, dtype=torch.float64, device=seeds.device)
    if len(seeds):  # one program a row: no size is an argument, and so none makes a variant to compile
        _uniform_kernel[(len(seeds),)](seeds, indices, uniforms, num_warps=1)
    return uniforms
