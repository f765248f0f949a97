"""Greedy decoding in half precision takes the token that float32 takes."""

import pytest
import torch

from pdmux_actor.models.linear import Linear
from pdmux_actor.models.logit_precision import sharpen_top_logits

HIDDEN, VOCABULARY = 64, 2000


def close_calls(dtype: torch.dtype, rows: int) -> tuple[torch.Tensor, Linear]:
    """Inputs and a head whose best logits lie closer together than `dtype` can tell."""
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(rows, HIDDEN, generator=generator)
    weight = torch.randn(VOCABULARY, HIDDEN, generator=generator)
    weight[1::2] = weight[::2] + 0.01 * torch.randn(VOCABULARY // 2, HIDDEN, generator=generator)
    return inputs, Linear(weight.to(dtype), packed=False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sharpen__close_logits__the_best_is_that_of_float32(dtype: torch.dtype) -> None:
    inputs, head = close_calls(dtype, rows=400)
    exact = inputs @ head.weight.float().t()
    logits = head(inputs.to(dtype)).float()
    rounded_best = logits.argmax(dim=1)

    sharpen_top_logits(logits, inputs, head)

    assert (rounded_best != exact.argmax(dim=1)).sum() > 10  # the fault is there without it
    assert torch.equal(logits.argmax(dim=1), exact.argmax(dim=1))


def test_sharpen__rows_that_are_not_finite_or_prefer_nothing__are_left_alone() -> None:
    inputs, head = close_calls(torch.bfloat16, rows=2)
    logits = torch.zeros(3, VOCABULARY)
    logits[0, 0], logits[1, 0] = torch.nan, torch.inf
    before = logits.clone()

    sharpen_top_logits(logits, inputs[:1].expand(3, -1), head)

    assert torch.equal(logits.nan_to_num(), before.nan_to_num())
