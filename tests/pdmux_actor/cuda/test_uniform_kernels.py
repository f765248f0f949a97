"""Numbers made on the device are the CPU's, in Triton's interpreter."""

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton has no build for this platform")

from pdmux_actor.executor.cuda.sampling_kernels import uniform_numbers
from pdmux_actor.executor.sampler import uniform


@pytest.mark.parametrize("num_rows", [0, 1, 300])
def test_uniform_numbers__any_seeds_and_places__are_those_of_the_cpu_to_the_last_bit(num_rows: int) -> None:
    drawn = np.random.default_rng(num_rows)
    seeds = drawn.integers(0, 1 << 64, num_rows, dtype=np.uint64, endpoint=False)
    seeds[:3] = np.array([0, (1 << 64) - 1, 1 << 63], dtype=np.uint64)[:num_rows]
    places = drawn.integers(0, 1 << 20, num_rows, dtype=np.int32)
    expected = uniform(seeds, places.astype(np.int64))

    made = uniform_numbers(torch.from_numpy(seeds.view(np.int64)), torch.from_numpy(places))

    assert made.dtype == torch.float64
    assert np.array_equal(made.numpy(), expected)
