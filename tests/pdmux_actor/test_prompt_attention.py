"""The compiled attention of prompts against the exact one."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pdmux_actor.models.compiled.library import cached_folder
from pdmux_actor.models.compiled.panel_linear import PanelKernels

KV_HEADS, GROUP = 2, 3


@pytest.fixture(scope="module")
def kernels() -> PanelKernels:
    made = PanelKernels.compiled_into(cached_folder())
    if made is None:
        pytest.skip("no compiler here, or a CPU that the kernels are not for")
    return made


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def attended(
    kernels: PanelKernels, query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None
) -> Tensor:
    out = torch.empty(len(query), query.shape[1] * query.shape[2], dtype=query.dtype)
    kernels.attend_prompt(query, key, value, out, scale=scale, window_tokens=window)
    return out


@pytest.mark.parametrize("window", [None, 1, 70])
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize(
    ("tokens", "keys", "head_dim"),
    [(1, 1, 64), (7, 7, 32), (100, 100, 64), (65, 300, 64), (130, 500, 128), (2, 129, 256)],
)
def test_prompt_attention__of_the_last_tokens_of_a_prompt__near_the_exact_one(
    kernels: PanelKernels, tokens: int, keys: int, head_dim: int, scale: float | None, window: int | None
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

    out = attended(kernels, query, key, value, scale, window)

    torch.testing.assert_close(
        out.double(), exact.transpose(0, 1).flatten(1), rtol=1 / 128, atol=float(exact.abs().max()) / 128
    )


def test_prompt_attention__in_chunks_of_any_length__has_the_same_bits(kernels: PanelKernels) -> None:
    query, key, value = drawn(200, 6, 64), drawn(200, 2, 64, seed=1), drawn(200, 2, 64, seed=2)
    whole = attended(kernels, query, key, value, None, None)

    for length in (1, 17, 64, 128):
        parts = []
        for first in range(0, 200, length):
            last = min(first + length, 200)
            parts.append(attended(kernels, query[first:last], key[:last], value[:last], None, None))
        assert torch.equal(torch.cat(parts), whole), length
