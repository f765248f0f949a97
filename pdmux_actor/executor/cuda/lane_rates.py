"""Measures what a lane with so many SMs reaches."""

from pdmux_actor.executor.cuda.lane_device import LaneDevice
from pdmux_actor.executor.cuda.large_kernels import LargeKernels
from pdmux_actor.scheduling.launch import Lane
from profiler.partition_rates import PartitionRate


def partition_rate(lanes: LaneDevice, kernels: LargeKernels, sms: int) -> PartitionRate:
    """Measures products on the prefill lane and copies on the decode lane. Nothing else may run."""
    prefill, decode = (lanes.streams.stream(lane, sms) for lane in (Lane.PREFILL, Lane.DECODE))
    given_sms = lanes.streams.sms_given(Lane.PREFILL, sms)
    with lanes.on(prefill, given_sms, Lane.PREFILL):
        flops_per_s = kernels.flops_per_s(prefill)
    with lanes.on(decode, lanes.streams.sms_given(Lane.DECODE, sms), Lane.DECODE):
        bandwidth_bytes_per_s = kernels.bandwidth_bytes_per_s(decode)
    return PartitionRate(sms=given_sms, flops_per_s=flops_per_s, bandwidth_bytes_per_s=bandwidth_bytes_per_s)
