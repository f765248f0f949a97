"""A matrix product and a copy, large enough to show what SMs and memory reach."""

import time
from collections.abc import Callable
from typing import Any

import torch

from pdmux_actor.executor.cuda.lane_device import LaneDevice
from pdmux_actor.scheduling.launch import Lane
from profiler.partition_rates import PartitionRate

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


def partition_rate(lanes: LaneDevice, kernels: LargeKernels, sms: int) -> PartitionRate:
    """Measures products on the prefill lane and copies on the decode lane. Nothing else may run."""
    prefill, decode = (lanes.streams.stream(lane, sms) for lane in (Lane.PREFILL, Lane.DECODE))
    given_sms = lanes.streams.sms_given(Lane.PREFILL, sms)
    with lanes.on(prefill, given_sms, Lane.PREFILL):
        flops_per_s = kernels.flops_per_s(prefill)
    with lanes.on(decode, lanes.streams.sms_given(Lane.DECODE, sms), Lane.DECODE):
        bandwidth_bytes_per_s = kernels.bandwidth_bytes_per_s(decode)
    return PartitionRate(sms=given_sms, flops_per_s=flops_per_s, bandwidth_bytes_per_s=bandwidth_bytes_per_s)
