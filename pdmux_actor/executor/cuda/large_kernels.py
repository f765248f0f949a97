"""A matrix product and a copy, large enough to show what SMs and memory reach."""

import time
from collections.abc import Callable
from typing import Any

import torch

_TIMINGS = 5
_LAUNCHES = 4  # in a timing, so that the host's part does not count


class LargeKernels:
    """Takes 2.4 GiB of the device while it exists."""

    def __init__(self, device: torch.device, *, matrix_size: int = 8192, copy_bytes: int = 1 << 30) -> None:
        self._left = torch.randn(matrix_size, matrix_size, dtype=torch.bfloat16, device=device)
        self._product = torch.empty_like(self._left)
        self._source = torch.empty(copy_bytes, dtype=torch.uint8, device=device)
        self._target = torch.empty_like(self._source)

    def flops_per_s(self, stream: Any, tokens: int | None = None) -> float:
        """Measures the rate of a bf16 product on `stream`, which is the current one, with the first `tokens` rows or
        all.
        """
        left, product = self._left[:tokens], self._product[:tokens]
        seconds = _best_s(lambda: torch.mm(left, self._left, out=product), stream)
        return float(2 * len(left) * len(self._left) ** 2 / seconds)

    def bandwidth_bytes_per_s(self, stream: Any) -> float:
        """Read and written, on `stream`, which is the current one."""
        return 2 * len(self._source) / _best_s(lambda: self._target.copy_(self._source), stream)


def _best_s(run: Callable[[], object], stream: Any) -> float:
    run()
    best_s = float("inf")
    for _ in range(_TIMINGS):
        stream.synchronize()
        started_s = time.perf_counter()
        for _ in range(_LAUNCHES):
            run()
        stream.synchronize()
        best_s = min(best_s, (time.perf_counter() - started_s) / _LAUNCHES)
    return best_s
