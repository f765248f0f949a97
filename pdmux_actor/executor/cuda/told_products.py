"""Finds out whether matrix products gain when they are told the SMs of their partition."""

import torch

from pdmux_actor.executor.cuda.large_kernels import LargeKernels
from pdmux_actor.executor.cuda.partition_streams import PartitionStreams
from pdmux_actor.executor.cuda.sm_target import products_gain_when_told
from pdmux_actor.scheduling.launch import Lane


def products_gain_on_partition(device: torch.device, streams: PartitionStreams, num_sms: int) -> bool:
    """Measures it on the largest partition beside the least one."""
    kernels = LargeKernels(device, copy_bytes=1)
    torch.cuda.synchronize(device)
    stream = streams.stream(Lane.PREFILL, num_sms - streams.step_sms)
    with torch.cuda.stream(stream):
        return products_gain_when_told(lambda: kernels.flops_per_s(stream), torch, streams.step_sms)
