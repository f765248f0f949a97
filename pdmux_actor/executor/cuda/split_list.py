"""Cuts the contexts of a decode batch into splits of about equal length, on the device: captured steps hold none."""

from dataclasses import dataclass

import torch
from torch import Tensor

_TILE_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitList:
    """Splits of all sequences, one after the other. sequences: int32 [most splits], the sequence of each split, and
    the number of sequences where there are fewer splits; firsts: int32 [sequences + 1], the first split of each.
    """

    sequences: Tensor
    firsts: Tensor


def target_splits(kv_heads: int, sms: int) -> int:
    """Returns how many even splits the tokens of a batch are cut into: programs come to two for every SM."""
    return max(1, -(-2 * sms // kv_heads))


def split_list(context_tokens: Tensor, target: int) -> SplitList:
    """Returns splits of `context_tokens` (int32 [sequences], 0: padding) that have at most 1 / `target` of the batch's
    tokens each, rounded up to tiles. Each sequence ends a split, so that there are `target` and a split for each
    sequence at most. Nothing here waits for the device.
    """
    tiles = (context_tokens + (_TILE_TOKENS - 1)) // _TILE_TOKENS
    most_tiles = ((tiles.sum(dtype=torch.int32) + (target - 1)) // target).clamp(min=1)
    ends = ((tiles + (most_tiles - 1)) // most_tiles).cumsum(0, dtype=torch.int32)
    places = torch.arange(target + len(context_tokens), dtype=torch.int32, device=context_tokens.device)
    return SplitList(
        sequences=torch.searchsorted(ends, places, right=True, out_int32=True),
        firsts=torch.nn.functional.pad(ends, (1, 0)),
    )
