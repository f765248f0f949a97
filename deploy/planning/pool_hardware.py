"""Defines what the units of a pool are made of, for the latency model."""

import os
from dataclasses import dataclass
from pathlib import Path

from deploy.fleet_file.settings import PoolSection
from pdmux_actor.executor.host_memory import host_memory_bytes
from pdmux_actor.executor.simulated import GPU_HOST_S
from placement.host_memory import host_share_bytes, host_share_of_gpus
from profiler.devices import device_named, laptop_cpu
from profiler.latency import LatencyModel
from profiler.roofline import RooflineLatency
from profiler.specs import DeviceSpec

CPU_HOST_S = 0.2e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitHardware:
    """`device` is one GPU of the unit's group, `latency` that of the whole group."""

    device: DeviceSpec
    num_gpus: int
    latency: LatencyModel
    host_s: float


def hardware_of(pool: PoolSection) -> UnitHardware:
    if pool.profile is not None:
        from profiler.profile_file import read_profile  # brings pyarrow, which a fleet without profiles does without

        profile = read_profile(Path(pool.profile))
        host_s = profile.host_s
        if host_s is None:
            host_s = CPU_HOST_S if pool.gpu_type is None else GPU_HOST_S
        _, latency = profile.best_latency()
        return UnitHardware(device=profile.device, num_gpus=profile.num_gpus, latency=latency, host_s=host_s)
    if pool.gpu_type is not None:
        return gpu_hardware(device_named(pool.gpu_type), pool.mesh_gpus)
    num_ranks = pool.mesh_gpus
    device = laptop_cpu(
        num_cores=max(1, (pool.cores or os.cpu_count() or 1) // num_ranks),
        memory_bytes=host_memory_bytes() // num_ranks,
    )
    latency = RooflineLatency(device, num_gpus=num_ranks)
    return UnitHardware(device=device, num_gpus=num_ranks, latency=latency, host_s=CPU_HOST_S)


def host_memory_of(pool: PoolSection, num_gpus: int) -> int:
    """Returns a unit's host memory for the weights of models that sleep."""
    if pool.host_memory is not None:
        return int(pool.host_memory)
    if pool.gpu_type is not None:
        return host_share_of_gpus(device_named(pool.gpu_type), num_gpus)
    return host_share_bytes(host_memory_bytes(), pool.devices_per_node // pool.mesh_gpus)


def gpu_hardware(device: DeviceSpec, num_gpus: int) -> UnitHardware:
    latency = RooflineLatency(device, num_gpus=num_gpus)
    return UnitHardware(device=device, num_gpus=num_gpus, latency=latency, host_s=GPU_HOST_S)
