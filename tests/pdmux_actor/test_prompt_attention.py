"""The compiled attention of prompts against the exact one."""

import pytest
import torch
from drawn_tensors import drawn
from torch import Tensor
from torch.nn import functional

from pdmux_actor.models.compiled.panel_linear import PanelKernels

KV_HEADS, GROUP = 2, 3


def attended(
    panel_kernels: PanelKernels, query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None
) -> Tensor:
    out = torch.empty(len(query), query.shape[1] * query.shape[2], dtype=query.dtype)
    panel_kernels.attend_prompt(query, key, value, out, scale=scale, window_tokens=window)
    return out


@pytest.mark.parametrize("window", [None, 1, 70])
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize(
    ("tokens", "keys", "head_dim"),
    [(1, 1, 64), (7, 7, 32), (100, 100, 64), (65, 300, 64), (130, 500, 128), (2, 129, 256)],
)
def test_prompt_attention__of_the_last_tokens_of_a_prompt__near_the_exact_one(
    panel_kernels: PanelKernels, tokens: int, keys: int, head_dim: int, scale: float | None, window: int | None
) -> None:
    query = drawn(tokens, KV_HEADS * GROUP, head_dim)
    cached = drawn(KV_HEADS, keys, 2, head_dim, seed=1)  # as it lies in blocks: keys beside values
    key, value = cached.transpose(0, 1).unbind(dim=2)
    seen = torch.ones(tokens, keys, dtype=torch.bool).tril(keys - tokens)
    if window is not None:
        seen = seen.triu(keys - tokens + 1 - window)
    exact = functional.scaled_dot_product_attention(
        query.transpose(0, 1).double(),
        key.transpose(0, 1).double().repeat_interleave(GROUP, 0),
        value.transpose(0, 1).double().repeat_interleave(GROUP, 0),
        attn_mask=seen,
        scale=scale,
    )

    out = attended(panel_kernels, query, key, value, scale, window)

    torch.testing.assert_close(
        out.double(), exact.transpose(0, 1).flatten(1), rtol=1 / 128, atol=float(exact.abs().max()) / 128
    )


def test_prompt_attention__in_chunks_of_any_length__has_the_same_bits(panel_kernels: PanelKernels) -> None:
    query, key, value = drawn(200, 6, 64), drawn(200, 2, 64, seed=1), drawn(200, 2, 64, seed=2)
    whole = attended(panel_kernels, query, key, value, None, None)

    for length in (1, 17, 64, 128):
        parts = []
        for first in range(0, 200, length):
            last = min(first + length, 200)
            parts.append(attended(panel_kernels, query[first:last], key[:last], value[:last], None, None))
        assert torch.equal(torch.cat(parts), whole), length
