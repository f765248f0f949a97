"""Attention over keys and values that were gathered from the block pool. Pure functions of tensors.

Grouped queries: the query heads of one KV head are a dimension of their own, so K and V are never repeated in memory.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionTraits:
    """`scale` multiplies the scores; None: 1 / sqrt(head_dim). `window_tokens`: a query sees that many tokens, itself
    among them; None: all. `softcap` c makes c tanh(s / c) of a score s (Gemma 2). `sinks` [heads] are scores of a key
    that every query sees and whose value is zero (gpt-oss).
    """

    scale: float | None = None
    window_tokens: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    @property
    def is_fused(self) -> bool:
        """A fused kernel computes it: neither the scores nor their sum are changed."""
        return self.softcap is None and self.sinks is None

    def scaled(self, query: Tensor) -> Tensor:
        """[tokens, heads, head_dim] for kernels that divide scores by sqrt(head_dim), and know no other trait."""
        assert self.is_fused, "loading refuses a model that changes scores"
        if self.scale is None:
            return query
        factor = self.scale * math.sqrt(query.shape[-1])
        return query.contiguous() if math.isclose(factor, 1.0) else query * factor


PLAIN = AttentionTraits()


# Queries per mask when a chunk has a cached prefix: bounds the mask's memory and skips keys that no query sees.
_QUERY_TILE_TOKENS = 512


def decode_attention(query: Tensor, key_value: Tensor, mask: Tensor, traits: AttentionTraits = PLAIN) -> Tensor:
    """One query token per sequence.

    query: [batch, kv_heads, group, head_dim]; key_value: [batch, kv_heads, keys, 2, head_dim];
    mask: [batch, 1, 1, keys], 0 or -inf, which knows of the window; what it hides must be finite. Returns
    [batch, heads * head_dim].
    """
    key, value = key_value.unbind(dim=3)
    return _attended(query, key, value, mask, traits).flatten(1)


def prompt_attention(query: Tensor, key: Tensor, value: Tensor, traits: AttentionTraits = PLAIN) -> Tensor:
    """A whole prompt, or its first chunk: causal, nothing cached.

    query: [tokens, heads, head_dim]; key, value: [tokens, kv_heads, head_dim]. Returns [tokens, heads * head_dim].
    """
    slides = traits.window_tokens is not None and traits.window_tokens < len(query)
    if slides or not traits.is_fused:
        return chunk_attention(query, torch.stack((key, value), dim=2).transpose(0, 1), traits)
    attended = functional.scaled_dot_product_attention(
        _grouped(query, key.shape[1]),
        _per_group(key, query),
        _per_group(value, query),
        is_causal=True,
        scale=traits.scale,
    )
    return _ungrouped(attended)


def chunk_attention(query: Tensor, key_value: Tensor, traits: AttentionTraits = PLAIN) -> Tensor:
    """A chunk whose tokens are the last ones of `key_value`.

    query: [tokens, heads, head_dim]; key_value: [kv_heads, keys, 2, head_dim] with keys = cached + tokens.
    Returns [tokens, heads * head_dim].
    """
    num_tokens, num_heads, _ = query.shape
    kv_heads, num_keys = key_value.shape[:2]
    start = num_keys - num_tokens
    group = num_heads // kv_heads
    window = traits.window_tokens or num_keys
    tiles = []
    for first in range(0, num_tokens, _QUERY_TILE_TOKENS):
        last = min(first + _QUERY_TILE_TOKENS, num_tokens)
        first_key = max(0, start + first + 1 - window)
        keys = key_value[:, None, first_key : start + last].expand(-1, group, -1, -1, -1)
        own = start + first - first_key  # the key of the tile's first query
        visible = torch.ones(last - first, keys.shape[2], dtype=torch.bool, device=query.device).tril(own)
        if window < start + last:
            visible = visible.triu(own + 1 - window)
        attended = _attended(_grouped(query[first:last], kv_heads), keys[..., 0, :], keys[..., 1, :], visible, traits)
        tiles.append(_ungrouped(attended))
    return tiles[0] if len(tiles) == 1 else torch.cat(tiles)


def _attended(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, traits: AttentionTraits) -> Tensor:
    """query: [n, kv_heads, group, head_dim] with keys [n, kv_heads, keys, head_dim] or, of one sequence, [kv_heads,
    group, queries, head_dim] with keys [kv_heads, group, keys, head_dim]; mask: of booleans or to be added.
    """
    if traits.is_fused:
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=traits.scale)
    scores = (query @ key.transpose(-1, -2)).float() * (traits.scale or query.shape[-1] ** -0.5)
    if traits.softcap is not None:
        scores = torch.tanh(scores / traits.softcap) * traits.softcap
    scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    if traits.sinks is None:
        return scores.softmax(-1).to(value.dtype) @ value
    of_one_sequence = mask.dim() == 2
    kv_heads, group = query.shape[:2] if of_one_sequence else query.shape[1:3]
    sinks = traits.sinks.float().view(kv_heads, group, *([1, 1] if of_one_sequence else [1]))
    with_sink = torch.cat((scores, sinks.expand(*scores.shape[:-1], 1)), dim=-1).softmax(-1)
    return with_sink[..., :-1].to(value.dtype) @ value


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
