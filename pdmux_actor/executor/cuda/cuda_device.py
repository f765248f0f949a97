"""What GPU this is: the profiler's entry for it, or a measurement of a fraction of a second."""

import os
import re
from collections.abc import Callable
from dataclasses import replace

import torch

from pdmux_actor.errors import DeviceUnavailable
from profiler.devices import DEVICES
from profiler.specs import DeviceSpec

_MATRIX_SIZE = 8192
_COPY_BYTES = 1 << 30
_LAUNCH_OVERHEAD_S = 6.7e-6  # as on H100
_MIN_CAPABILITY = (8, 0)
# A stream waits for whatever shares its hardware queue. CUDA makes 8 queues unless told; partitions have more streams.
_HARDWARE_QUEUES = 32


def open_cuda_device(index: int = 0) -> torch.device:
    """Raises:
    DeviceUnavailable: no GPU, a torch without CUDA, or a GPU that is too old.
    """
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", str(_HARDWARE_QUEUES))  # read when CUDA makes its context
    if not torch.cuda.is_available():
        built = torch.version.cuda
        raise DeviceUnavailable(
            reason="torch sees no GPU" if built else "this torch is built without CUDA",
            remedy="check nvidia-smi and CUDA_VISIBLE_DEVICES" if built else "install torch's CUDA build",
        )
    if torch.cuda.get_device_capability(index) < _MIN_CAPABILITY:
        raise DeviceUnavailable(
            reason=f"{torch.cuda.get_device_name(index)} is older than sm_80", remedy="use an A100, L40S, H100 or newer"
        )
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    torch.zeros(1, device=device)  # makes the primary context, which green contexts are parts of
    return device


def cuda_device_spec(device: torch.device, *, step_sms: int) -> DeviceSpec:
    """`step_sms` is the granularity of partitions."""
    properties = torch.cuda.get_device_properties(device)
    known = known_device(properties.name, properties.total_memory)
    spec = known or _measure(device, properties.name)
    return replace(
        spec,
        num_sms=properties.multi_processor_count,
        memory_bytes=properties.total_memory,
        partition_granularity_sms=step_sms,
    )


def known_device(name: str, memory_bytes: int) -> DeviceSpec | None:
    """The profiler's device that CUDA calls `name`.

    >>> known_device("NVIDIA H100 80GB HBM3", 80 << 30).name, known_device("NVIDIA T4", 16 << 30)
    ('H100', None)
    """
    words = set(re.split(r"[^A-Za-z0-9]+", name))
    found = [spec for spec in DEVICES.values() if spec.name.split("-")[0] in words]
    # The A100 with 40 GB has other memory than the one that was measured.
    return next((spec for spec in found if abs(spec.memory_bytes - memory_bytes) < 0.25 * spec.memory_bytes), None)


def _measure(device: torch.device, name: str) -> DeviceSpec:
    left = torch.randn(_MATRIX_SIZE, _MATRIX_SIZE, dtype=torch.bfloat16, device=device)
    out = torch.empty_like(left)
    source = torch.empty(_COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    matmul_s = _best_s(lambda: torch.mm(left, left, out=out))
    copy_s = _best_s(lambda: target.copy_(source))
    return DeviceSpec(
        name=name,
        num_sms=1,
        peak_flops_per_s=2 * _MATRIX_SIZE**3 / matmul_s,
        memory_bandwidth_bytes_per_s=2 * _COPY_BYTES / copy_s,
        memory_bytes=1,
        launch_overhead_s=_LAUNCH_OVERHEAD_S,
        source="measured at start: bf16 matrix product and copy",
    )


def _best_s(run: Callable[[], object]) -> float:
    best_s = float("inf")
    for _ in range(5):
        started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        started.record()
        run()
        ended.record()
        ended.synchronize()
        best_s = min(best_s, started.elapsed_time(ended) / 1e3)
    return best_s
