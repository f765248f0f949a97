"""The executor that an engine process runs, by its settings."""

import os

import psutil

from pdmux_actor.errors import DeviceUnavailable
from pdmux_actor.executor.base import HostingExecutor
from pdmux_actor.executor.simulated import GPU_HOST_S, RealClock, SimulatedExecutor
from pdmux_actor.scheduling.policies.registry import POLICIES
from pdmux_actor.serving.commands import EngineSettings
from pdmux_actor.serving.known_latency import KnownLatency
from profiler.devices import device_named, laptop_cpu
from profiler.roofline import RooflineLatency
from profiler.specs import DeviceSpec


def build_executor(settings: EngineSettings, known: KnownLatency | None) -> HostingExecutor:
    """`known` is what a profile says."""
    if settings.kind == "simulated":
        device = known.device if known is not None else _simulated_device(settings)
        return SimulatedExecutor(
            device=device,
            latency=known.latency if known is not None else RooflineLatency(device, num_gpus=settings.num_gpus),
            total_blocks=(settings.kv_pool_bytes or 0) // settings.block_bytes,
            block_bytes=settings.block_bytes,
            clock=RealClock(),
            host_s=_simulated_host_s(settings, known),
        )
    # torch takes seconds to import and a simulated fleet does without it.
    if settings.kind == "torch_cuda":
        return _cuda_executor(settings)
    from pdmux_actor.models.torch_threads import use_torch_threads

    use_torch_threads(1)  # the cores are the lanes'
    if settings.num_gpus > 1:
        from pdmux_actor.serving.rank_processes import open_tensor_parallel_executor

        return open_tensor_parallel_executor(
            num_ranks=settings.num_gpus,
            num_lanes=1 + settings.scheduler.decode_lanes,
            kv_pool_bytes=settings.kv_pool_bytes or 0,
            block_bytes=settings.block_bytes,
            num_cores=settings.num_cores,
            default_dtype=settings.dtype,
        )
    from pdmux_actor.executor.torch_cpu import TorchCpuExecutor

    return TorchCpuExecutor(
        kv_pool_bytes=settings.kv_pool_bytes or 0,
        block_bytes=settings.block_bytes,
        num_cores=settings.num_cores,
        default_dtype=settings.dtype,
    )


def _cuda_executor(settings: EngineSettings) -> HostingExecutor:
    try:
        from pdmux_actor.executor.open_cuda import open_cuda_executor
        from pdmux_actor.serving.cuda_ranks import open_tensor_parallel_cuda_executor
    except ImportError as missing:
        raise DeviceUnavailable(
            reason=f"the Python package {missing.name} is not installed", remedy="pip install 'muxfleet[cuda]'"
        ) from missing
    if settings.num_gpus > 1:
        return open_tensor_parallel_cuda_executor(
            num_ranks=settings.num_gpus,
            num_lanes=1 + settings.scheduler.decode_lanes,
            kv_pool_bytes=settings.kv_pool_bytes or 0,
            block_bytes=settings.block_bytes,
            default_dtype=settings.dtype,
            divides_decode=settings.scheduler.decode_lanes > 1,
            launch_limits=settings.scheduler.launch_limits(),
        )
    return open_cuda_executor(
        kv_pool_bytes=settings.kv_pool_bytes or 0,
        block_bytes=settings.block_bytes,
        default_dtype=settings.dtype,
        divides_decode=settings.scheduler.decode_lanes > 1,
        fuses=POLICIES[settings.policy].fuses,
        launch_limits=settings.scheduler.launch_limits(),
    )


def _simulated_host_s(settings: EngineSettings, known: KnownLatency | None) -> float:
    if known is not None and known.host_s is not None:
        return known.host_s
    return 0.0 if settings.device_type is None else GPU_HOST_S


def _simulated_device(settings: EngineSettings) -> DeviceSpec:
    if settings.device_type is not None:
        return device_named(settings.device_type)
    num_cores = settings.num_cores or os.cpu_count() or 1
    return laptop_cpu(num_cores=num_cores, memory_bytes=psutil.virtual_memory().total)
