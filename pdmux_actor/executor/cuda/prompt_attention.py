"""Attention of prefill chunks over their whole contexts, several chunks at once."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pdmux_actor.executor.cuda.device_batch import ChunkExtent
from pdmux_actor.models.attention import chunk_attention

_FLASH_DTYPES = (torch.bfloat16, torch.float16)
_FLASH_HEAD_STEP, _FLASH_LARGEST_HEAD = 8, 256


def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_ends: Tensor,
    context_ends: Tensor,
    chunks: Sequence[ChunkExtent],
    attended: Tensor,
) -> None:
    """Causal, aligned at the end: each chunk's queries are the last tokens of its context.

    query: [tokens, heads, head_dim]; key, value: [all contexts, kv_heads, head_dim]; *_ends: int32 [chunks + 1],
    cumulative. Fills `attended`, of the shape of `query`: by torch's flash kernel, which needs no repeated keys for
    grouped queries, where there is one.
    """
    if not query.is_cuda or not has_flash_kernel(query.dtype, query.shape[2]):
        _by_chunk(query, key, value, chunks, attended.flatten(1))
        return
    longest, longest_context = max(chunk.length for chunk in chunks), max(chunk.context_tokens for chunk in chunks)
    arguments = query, key, value, query_ends, context_ends, longest, longest_context, 0.0, True, False
    in_place = getattr(torch.ops.aten, "_flash_attention_forward_no_dropout_inplace", None)
    if in_place is None:  # torch 2.11 has it not, and keeps what it returns for each stream
        attended.copy_(torch.ops.aten._flash_attention_forward(*arguments)[0])
    else:
        in_place(attended, *arguments)


def has_flash_kernel(dtype: torch.dtype, head_dim: int) -> bool:
    return dtype in _FLASH_DTYPES and head_dim % _FLASH_HEAD_STEP == 0 and head_dim <= _FLASH_LARGEST_HEAD


def _by_chunk(query: Tensor, key: Tensor, value: Tensor, chunks: Sequence[ChunkExtent], attended: Tensor) -> None:
    """For dtypes and devices without a flash kernel. `attended`: [tokens, heads * head_dim]."""
    first_context = 0
    for chunk in chunks:
        context = slice(first_context, first_context + chunk.context_tokens)
        key_value = torch.stack((key[context], value[context]), dim=2).transpose(0, 1)
        tokens = slice(chunk.first, chunk.first + chunk.length)
        attended[tokens] = chunk_attention(query[tokens], key_value)
        first_context += chunk.context_tokens
