"""Tokens that masks ban on the device are those that they ban on a CPU, in Triton's interpreter."""

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton has no build for this platform")

from kernel_variants import recorded_variants

from pdmux_actor.executor.constrained_rows import ConstrainedRows
from pdmux_actor.executor.cuda.ban_kernels import ban_tokens


@pytest.mark.parametrize("vocab_size", [31, 640, 2085])
@pytest.mark.parametrize("rows", [[], [2], [0, 1, 3]])
def test_ban_tokens__some_rows_of_a_batch__as_on_the_cpu(vocab_size: int, rows: list[int]) -> None:
    drawn = np.random.default_rng(vocab_size + len(rows))
    words = drawn.integers(-(1 << 31), 1 << 31, (4, -(-vocab_size // 32)), dtype=np.int32, endpoint=False)
    logits = torch.from_numpy(drawn.normal(size=(4, vocab_size)).astype(np.float32))
    expected = logits.clone()
    ConstrainedRows([(row, None) for row in rows], 4).apply(words, expected)

    ban_tokens(logits, torch.from_numpy(words), torch.tensor(rows, dtype=torch.int32))

    assert torch.equal(logits, expected)
    assert torch.isinf(logits).any() == bool(rows)


def test_ban_tokens__any_number_of_rows__is_one_variant() -> None:
    with recorded_variants() as compiled:
        for count in (1, 2, 16):
            words = torch.full((16, 20), -1, dtype=torch.int32)
            ban_tokens(torch.zeros(16, 640), words, torch.arange(count, dtype=torch.int32))

    assert len(compiled) == 1
