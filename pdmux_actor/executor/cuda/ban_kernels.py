"""Bans tokens in rows of logits by masks of bits, on the device.

xgrammar's own kernel is compiled anew for one row, for 16 and for others, under traffic, and its rows come from
pageable memory.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 1024
_WORD_BITS = 32


@triton.jit
def _ban_kernel(logits_ptr, words_ptr, rows_ptr, vocab_size, num_words, TILE: tl.constexpr, WORD_BITS: tl.constexpr):
    row = tl.load(rows_ptr + tl.program_id(0)).to(tl.int64)
    places = tl.program_id(1) * TILE + tl.arange(0, TILE)
    is_token = places < vocab_size
    words = tl.load(words_ptr + row * num_words + places // WORD_BITS, mask=is_token, other=-1)
    is_banned = ((words >> (places % WORD_BITS)) & 1) == 0
    tl.store(logits_ptr + row * vocab_size + places, float("-inf"), mask=is_token & is_banned)


def ban_tokens(logits: Tensor, words: Tensor, rows: Tensor) -> None:
    """Makes minus infinity of a token's logit in `rows` (int32) where its bit in `words` is 0. logits: float32 [all
    rows, vocab_size]; words: int32 [all rows, words].
    """
    vocab_size, num_words = logits.shape[1], words.shape[1]
    assert logits.is_contiguous(), "a row's logits follow the last row's"
    assert num_words * _WORD_BITS >= vocab_size, "every token has a bit"
    if len(rows):
        grid = (len(rows), triton.cdiv(vocab_size, _TILE))
        _ban_kernel[grid](logits, words, rows, vocab_size, num_words, TILE=_TILE, WORD_BITS=_WORD_BITS)


def all_allowed(logits: Tensor) -> Tensor:
    """Returns a mask that bans nothing, of as many rows."""
    num_words = triton.cdiv(logits.shape[1], _WORD_BITS)
    return torch.full((len(logits), num_words), -1, dtype=torch.int32, device=logits.device)
