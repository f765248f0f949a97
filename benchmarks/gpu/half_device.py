"""Executors on the whole GPU, or on one half of its SMs."""

from dataclasses import replace
from typing import Any

import torch

from pdmux_actor.executor.cuda.cuda_device import cuda_device_spec, open_cuda_device
from pdmux_actor.executor.cuda.graph_capture import CudaGraphCapture
from pdmux_actor.executor.cuda.green_contexts import GreenContexts
from pdmux_actor.executor.cuda.lane_device import CudaLanes
from pdmux_actor.executor.cuda.large_kernels import LargeKernels, gains_on
from pdmux_actor.executor.cuda.launch_graphs import LaunchGraphs
from pdmux_actor.executor.open_cuda import open_cuda_executor
from pdmux_actor.executor.torch_cuda import TorchCudaExecutor
from pdmux_actor.scheduling.launch import Lane
from placement.estimation.memory import graph_bytes
from placement.launch_limits import LaunchLimits


class HalfStreams:
    """Both lanes on one stream of one half: implements partition_streams.PartitionStreams."""

    kind = "half of the SMs"
    unpartitioned_reason: str | None = None

    def __init__(self, device: torch.device, contexts: GreenContexts, half: int) -> None:
        resource = contexts.resource
        (pair,) = contexts.pairs((resource.num_sms // 2 // resource.step_sms * resource.step_sms,))
        self.num_sms = (pair.decode_sms, pair.prefill_sms)[half]
        self.step_sms = self.num_sms
        self._contexts = contexts
        self._stream = torch.cuda.ExternalStream((pair.decode_stream, pair.prefill_stream)[half], device)

    def stream(self, lane: Lane, sms: int) -> Any:
        return self._stream

    def part_stream(self, first_sm: int, sms: int) -> Any:
        return self._stream

    def sms_given(self, lane: Lane, sms: int) -> int:
        return self.num_sms

    def close(self) -> None:
        self._contexts.close()


class HalvableGpu:
    def __init__(self, *, kv_pool_bytes: int, block_bytes: int, limits: LaunchLimits) -> None:
        self._kv_pool_bytes = kv_pool_bytes
        self._block_bytes = block_bytes
        self._limits = limits

    def open(self, half: int | None) -> TorchCudaExecutor:
        """Raises DeviceUnavailable, and for a half PartitioningUnavailable."""
        if half is None:
            return open_cuda_executor(
                kv_pool_bytes=self._kv_pool_bytes, block_bytes=self._block_bytes, launch_limits=self._limits
            )
        from cuda.bindings import driver

        device = open_cuda_device()
        streams = HalfStreams(device, GreenContexts(driver, 0), half)
        whole = cuda_device_spec(device, step_sms=streams.step_sms)
        spec = replace(
            whole, num_sms=streams.num_sms, peak_flops_per_s=whole.peak_flops_per_s * streams.num_sms / whole.num_sms
        )
        return TorchCudaExecutor(
            kv_pool_bytes=self._kv_pool_bytes // 2,
            block_bytes=self._block_bytes,
            lanes=CudaLanes(device, streams, num_sms=whole.num_sms, told_lanes=self._told_lanes(streams, device)),
            device=spec,
            graphs=LaunchGraphs(CudaGraphCapture(torch.cuda), graph_bytes(spec.memory_bytes) // 2),
            launch_limits=self._limits,
        )

    def _told_lanes(self, streams: HalfStreams, device: torch.device) -> frozenset[Lane]:
        """As on the whole device: a half must not be slow for want of a word."""
        kernels = LargeKernels(device, copy_bytes=1)
        torch.cuda.synchronize(device)
        num_sms = torch.cuda.get_device_properties(device).multi_processor_count
        stream = streams.stream(Lane.DECODE, streams.num_sms)
        return frozenset(lane for lane in Lane if gains_on(kernels, stream, lane, num_sms - streams.num_sms))
