"""Attention over keys and values that were gathered from the block pool. Pure functions of tensors.

Grouped queries: the query heads of one KV head are a dimension of their own, so K and V are never repeated in memory.
"""

import torch
from torch import Tensor
from torch.nn import functional

# Queries per mask when a chunk has a cached prefix: bounds the mask's memory and skips keys that no query sees.
_QUERY_TILE_TOKENS = 512


def decode_attention(query: Tensor, key_value: Tensor, mask: Tensor) -> Tensor:
    """One query token per sequence.

    query: [batch, kv_heads, group, head_dim]; key_value: [batch, kv_heads, keys, 2, head_dim];
    mask: [batch, 1, 1, keys], 0 or -inf; what it hides must be finite. Returns [batch, heads * head_dim].
    """
    key, value = key_value.unbind(dim=3)
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask).flatten(1)


def prompt_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A whole prompt, or its first chunk: causal, nothing cached.

    query: [tokens, heads, head_dim]; key, value: [tokens, kv_heads, head_dim]. Returns [tokens, heads * head_dim].
    """
    attended = functional.scaled_dot_product_attention(
        _grouped(query, key.shape[1]), _per_group(key, query), _per_group(value, query), is_causal=True
    )
    return _ungrouped(attended)


def chunk_attention(query: Tensor, key_value: Tensor) -> Tensor:
    """A chunk whose tokens are the last ones of `key_value`.

    query: [tokens, heads, head_dim]; key_value: [kv_heads, keys, 2, head_dim] with keys = cached + tokens.
    Returns [tokens, heads * head_dim].
    """
    num_tokens, num_heads, _ = query.shape
    kv_heads, num_keys = key_value.shape[:2]
    start = num_keys - num_tokens
    group = num_heads // kv_heads
    tiles = []
    for first in range(0, num_tokens, _QUERY_TILE_TOKENS):
        last = min(first + _QUERY_TILE_TOKENS, num_tokens)
        keys = key_value[:, None, : start + last].expand(-1, group, -1, -1, -1)
        visible = torch.ones(last - first, start + last, dtype=torch.bool, device=query.device).tril(start + first)
        attended = functional.scaled_dot_product_attention(
            _grouped(query[first:last], kv_heads), keys[..., 0, :], keys[..., 1, :], attn_mask=visible
        )
        tiles.append(_ungrouped(attended))
    return tiles[0] if len(tiles) == 1 else torch.cat(tiles)


def _grouped(query: Tensor, kv_heads: int) -> Tensor:
    """[tokens, heads, head_dim] -> [kv_heads, group, tokens, head_dim], a view."""
    num_tokens, num_heads, head_dim = query.shape
    return query.view(num_tokens, kv_heads, num_heads // kv_heads, head_dim).permute(1, 2, 0, 3)


def _per_group(heads: Tensor, query: Tensor) -> Tensor:
    """[tokens, kv_heads, head_dim] -> [kv_heads, group, tokens, head_dim], a view that repeats without copying."""
    group = query.shape[1] // heads.shape[1]
    return heads.transpose(0, 1).unsqueeze(1).expand(-1, group, -1, -1)


def _ungrouped(attended: Tensor) -> Tensor:
    """[kv_heads, group, tokens, head_dim] -> [tokens, heads * head_dim]."""
    return attended.permute(2, 0, 1, 3).flatten(1)
