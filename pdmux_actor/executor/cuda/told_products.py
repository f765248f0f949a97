"""Finds out which lane's matrix products gain when they are told the SMs of their partition."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from pdmux_actor.executor.cuda.large_kernels import LargeKernels
from pdmux_actor.executor.cuda.partition_streams import PartitionStreams
from pdmux_actor.executor.cuda.sm_target import gain_when_told
from pdmux_actor.scheduling.launch import Lane

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
