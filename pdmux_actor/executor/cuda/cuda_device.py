"""Identifies the GPU: the profiler's entry for it, or a measurement of a fraction of a second."""

import os
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from pdmux_actor.errors import DeviceUnavailable
from pdmux_actor.executor.cuda.large_kernels import LargeKernels
from profiler.devices import DEVICES
from profiler.specs import DeviceSpec

_LAUNCH_OVERHEAD_S = 6.7e-6  # as on H100
_MIN_CAPABILITY = (8, 0)
_PAUSE_S, _MOST_PAUSES = 0.25, 60
# A stream waits for whatever shares its hardware queue. CUDA makes 8 queues unless told; partitions have more streams.
_HARDWARE_QUEUES = 32


def open_cuda_device(index: int = 0) -> torch.device:
    """Raises:
    DeviceUnavailable: no GPU, a torch or a driver that cannot use it, or a GPU that is too old or taken.
    """
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", str(_HARDWARE_QUEUES))  # read when CUDA makes its context
    check_cuda_device(torch.cuda, torch.version.cuda, index)
    device = torch.device("cuda", index)
    try:
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)  # makes the primary context, which green contexts are parts of
    except RuntimeError as error:
        raise DeviceUnavailable(reason=_first_line(error), remedy="nvidia-smi shows who else uses the GPU") from error
    from triton.runtime.driver import driver  # where Triton is missing, other executors do without it

    check_triton(driver)
    return device


def check_cuda_devices(count: int) -> None:
    """Raises DeviceUnavailable: there are fewer GPUs, or the last of so many cannot be used."""
    check_cuda_device(torch.cuda, torch.version.cuda, count - 1)


def check_triton(driver: Any) -> None:
    """`driver` is Triton's, or whatever answers like it. Raises DeviceUnavailable: it cannot launch kernels here."""
    try:
        driver.active.get_current_target()  # compiles a module of its own, once for all processes of a machine
    except (RuntimeError, OSError, AssertionError, subprocess.CalledProcessError) as error:
        reason = _first_line(error)
        if isinstance(error, subprocess.CalledProcessError):
            reason = f"{error.cmd[0]} ended with exit code {error.returncode}"
        raise DeviceUnavailable(
            reason=f"Triton cannot compile its launcher: {reason}",
            remedy="install a C compiler and Python's headers (on Debian gcc, libc6-dev and python3-dev)",
        ) from error


def check_cuda_device(cuda: Any, built_for: str | None, index: int) -> None:
    """`cuda` is torch.cuda, or whatever answers like it; `built_for` the CUDA version of this torch.

    Raises DeviceUnavailable.
    """
    if built_for is None:
        raise DeviceUnavailable(reason="this torch is built without CUDA", remedy="install torch's CUDA build")
    try:
        cuda.init()
    except RuntimeError as error:
        reason = _first_line(error)
        remedy = "check nvidia-smi and CUDA_VISIBLE_DEVICES"
        if "too old" in reason:
            remedy = f"install an NVIDIA driver for CUDA {built_for}, or a torch that is built for yours"
        raise DeviceUnavailable(reason=reason, remedy=remedy) from error
    if index >= cuda.device_count():
        reason = f"GPU {index} is asked for, and {cuda.device_count()} are visible"
        raise DeviceUnavailable(reason=reason, remedy="check CUDA_VISIBLE_DEVICES")
    name, capability = cuda.get_device_name(index), tuple(cuda.get_device_capability(index))
    if capability < _MIN_CAPABILITY:
        raise DeviceUnavailable(reason=f"{name} is older than sm_80", remedy="use an A100, L40S, H100 or newer")
    built_archs = cuda.get_arch_list()
    if built_archs and not any(_runs_on(arch, capability) for arch in built_archs):
        reason = f"this torch is built for {', '.join(built_archs)}, {name} is sm_{capability[0]}{capability[1]}"
        raise DeviceUnavailable(reason=reason, remedy="install a torch that is built for this GPU")


def _runs_on(arch: str, capability: tuple[int, ...]) -> bool:
    """Machine code runs within its major version, intermediate code (compute_90) on whatever is newer.

    >>> [_runs_on(arch, (9, 0)) for arch in ("sm_80", "sm_90", "sm_90a", "compute_80", "sm_100")]
    [False, True, True, True, False]
    """
    kind, _, digits = arch.partition("_")
    number = re.sub(r"\D", "", digits)
    if not number:
        return False
    built = int(number[:-1]), int(number[-1])
    return built <= capability and (kind == "compute" or built[0] == capability[0])


def _first_line(error: Exception) -> str:
    return re.split(r"\n|\. ", str(error), maxsplit=1)[0]


def cuda_device_spec(device: torch.device, *, step_sms: int) -> DeviceSpec:
    """`step_sms` is the granularity of partitions."""
    properties = torch.cuda.get_device_properties(device)
    known = known_device(properties.name, properties.total_memory, properties.multi_processor_count)
    spec = known or _measure(device, properties.name)
    return replace(
        spec,
        num_sms=properties.multi_processor_count,
        memory_bytes=properties.total_memory,
        partition_granularity_sms=step_sms,
    )


def known_device(name: str, memory_bytes: int, num_sms: int) -> DeviceSpec | None:
    """The profiler's device that CUDA calls `name`; none for variants of it (PCIe, a MIG slice, another series).

    >>> known_device("NVIDIA H100 80GB HBM3", 80 << 30, 132).name
    'H100'
    >>> [known_device(*gpu) for gpu in (("NVIDIA H100 PCIe", 80 << 30, 114), ("GeForce RTX 3090", 24 << 30, 82))]
    [None, None]
    """
    words = set(re.split(r"[^A-Za-z0-9]+", name))
    found = [spec for spec in DEVICES.values() if spec.name.split("-")[0] in words and spec.num_sms == num_sms]
    # The A100 with 40 GB has other memory than the one that was measured.
    return next((spec for spec in found if abs(spec.memory_bytes - memory_bytes) < 0.25 * spec.memory_bytes), None)


def _measure(device: torch.device, name: str) -> DeviceSpec:
    kernels, stream = LargeKernels(device), torch.cuda.current_stream(device)
    return DeviceSpec(
        name=name,
        num_sms=1,
        peak_flops_per_s=kernels.flops_per_s(stream),
        memory_bandwidth_bytes_per_s=kernels.bandwidth_bytes_per_s(stream),
        memory_bytes=1,
        launch_overhead_s=_LAUNCH_OVERHEAD_S,
        source="measured at start: bf16 matrix product and copy",
    )


def settled_free_bytes(free_bytes: Callable[[], int], pause: Callable[[float], None] = time.sleep) -> int:
    """Returns what is free once that grows no more: the driver gives back the memory of an engine that was killed, and
    in whose place this one starts, over a second or two.
    """
    found = free_bytes()
    for _ in range(_MOST_PAUSES):
        pause(_PAUSE_S)
        before, found = found, free_bytes()
        if found <= before:
            break
    return found


def check_pool(kv_pool_bytes: int, free_bytes: int) -> None:
    if kv_pool_bytes > free_bytes:
        needed, free = (f"{size / (1 << 30):.1f} GiB" for size in (kv_pool_bytes, free_bytes))
        raise DeviceUnavailable(
            reason=f"the KV pool takes {needed} and {free} of the GPU's memory are free",
            remedy="lower the pool's kv_memory so that weights fit beside it, or end what else uses the GPU",
        )
