"""Attention of prefill chunks over their whole contexts, several chunks at once."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pdmux_actor.executor.cuda.device_batch import ChunkExtent
from pdmux_actor.models.attention import chunk_attention

_FLASH_DTYPES = (torch.bfloat16, torch.float16)
_FLASH_HEAD_STEP, _FLASH_LARGEST_HEAD = 8, 256


def varlen_attention(
    query: Tensor, key: Tensor, value: Tensor, query_ends: Tensor, context_ends: Tensor, chunks: Sequence[ChunkExtent]
) -> Tensor:
    """Causal, each chunk's queries being the last tokens of its context.

    query: [tokens, heads, head_dim]; key, value: [all contexts, kv_heads, head_dim]; *_ends: int32 [chunks + 1],
    cumulative. Returns [tokens, heads * head_dim].
    """
    if query.is_cuda and has_flash_kernel(query.dtype, query.shape[2]):
        # torch's own flash kernel; causal means aligned at the end, and grouped queries need no repeated keys.
        attended: Tensor = torch.ops.aten._flash_attention_forward(
            query,
            key,
            value,
            query_ends,
            context_ends,
            max(chunk.length for chunk in chunks),
            max(chunk.context_tokens for chunk in chunks),
            0.0,
            True,
            False,
        )[0]
        return attended.flatten(1)
    return _by_chunk(query, key, value, chunks)


def has_flash_kernel(dtype: torch.dtype, head_dim: int) -> bool:
    return dtype in _FLASH_DTYPES and head_dim % _FLASH_HEAD_STEP == 0 and head_dim <= _FLASH_LARGEST_HEAD


def _by_chunk(query: Tensor, key: Tensor, value: Tensor, chunks: Sequence[ChunkExtent]) -> Tensor:
    """For dtypes and devices without a flash kernel."""
    parts, first_context = [], 0
    for chunk in chunks:
        context = slice(first_context, first_context + chunk.context_tokens)
        key_value = torch.stack((key[context], value[context]), dim=2).transpose(0, 1)
        parts.append(chunk_attention(query[chunk.first : chunk.first + chunk.length], key_value))
        first_context += chunk.context_tokens
    return parts[0] if len(parts) == 1 else torch.cat(parts)
