"""Attention of prefill chunks over their whole contexts, several chunks at once."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

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
    cumulative. Fills `attended`, of the shape of `query`.
    """
    if not query.is_cuda or not has_flash_kernel(query.dtype, query.shape[2]):
        _by_chunk(query, key, value, chunks, attended.flatten(1))
        return
    longest, longest_context = max(chunk.length for chunk in chunks), max(chunk.context_tokens for chunk in chunks)
    _flash(attended, query, key, value, query_ends, context_ends, longest, longest_context)


def packed_attention(query: Tensor, key: Tensor, value: Tensor, ends: Tensor) -> Tensor:
    """Causal, each chunk over itself; where chunks end is known to the device alone, so that it can be captured.

    query: [tokens, heads, head_dim]; key, value: [tokens, kv_heads, head_dim]; ends: int32, cumulative, from 0 to all
    tokens, which may come several times. Returns the shape of `query`.
    """
    num_tokens, _, head_dim = query.shape
    if query.is_cuda and has_flash_kernel(query.dtype, head_dim):
        attended = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        _flash(attended, query, key, value, ends, ends, num_tokens, num_tokens)
        return attended
    places = torch.arange(num_tokens, dtype=torch.int32, device=query.device)
    chunks = torch.searchsorted(ends[1:], places, right=True)
    visible = (chunks[:, None] == chunks) & (places[:, None] >= places)
    query, key, value = (states.transpose(0, 1).unsqueeze(0) for states in (query, key, value))
    attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=visible, enable_gqa=True)
    return attended[0].transpose(0, 1)


def _flash(attended: Tensor, query: Tensor, *others: Tensor | int) -> None:
    """Fills it by torch's flash kernel, which needs no repeated keys for grouped queries. `others`: keys, values, where
    queries and contexts end, and the most tokens of each that a chunk may have.
    """
    arguments = query, *others, 0.0, True, False  # no dropout, causal, no mask for debugging
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
