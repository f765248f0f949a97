"""Matrix products and copies that are large enough to show what SMs and memory reach, and which lanes gain when told
their SMs.
"""

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from pdmux_actor.executor.cuda.lane_device import LaneDevice
from pdmux_actor.executor.cuda.partition_streams import PartitionStreams
from pdmux_actor.executor.cuda.sm_target import gain_when_told
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


# Rows of the products that are measured, None: a prompt's. Those of a decode batch take as long as weights are read.
_TOKENS: Mapping[Lane, int | None] = MappingProxyType({Lane.PREFILL: None, Lane.DECODE: 64})


def lanes_that_gain(device: torch.device, streams: PartitionStreams, num_sms: int) -> frozenset[Lane]:
    """Measures each lane's products on two of its partitions. A lane gains if it does on both: prompts may gain a
    little on a large one, and lose much on a smaller one.
    """
    kernels = LargeKernels(device, copy_bytes=1)
    torch.cuda.synchronize(device)
    step = streams.step_sms
    middle = max(step, num_sms // 2 // step * step)
    shares = {
        Lane.PREFILL: (num_sms - step, num_sms - middle),
        Lane.DECODE: (middle, max(step, middle // 2 // step * step)),
    }
    return frozenset(
        lane
        for lane in Lane
        if all(gains_on(kernels, streams.stream(lane, sms), lane, num_sms - sms) for sms in shares[lane])
    )


def gains_on(kernels: LargeKernels, stream: Any, lane: Lane, spared_sms: int) -> bool:
    """Measures products of `lane` on `stream`, which leaves `spared_sms` SMs to others. Nothing else may run."""
    with torch.cuda.stream(stream):
        return gain_when_told(lambda: kernels.flops_per_s(stream, _TOKENS[lane]), torch, spared_sms)
