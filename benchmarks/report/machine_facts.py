"""What a result needs beside it to be read: the machine, how busy it was, and which versions ran."""

import os
from importlib.metadata import PackageNotFoundError, version

from profiler import machine
from profiler.specs import DeviceSpec

_PACKAGES = ("torch", "transformers", "ray")
_ISA = frozenset({"avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16"})


def machine_facts(device: DeviceSpec | None = None, *, time: str = "real") -> dict[str, object]:
    """`device` is what did the work, where that was measured too; `time` in which it was done, real or virtual. To be
    asked at the end: it says how busy the machine was.
    """
    facts: dict[str, object] = {
        **machine.machine_facts(),
        "time": time,
        "isa": sorted(_ISA.intersection(machine.cpuinfo().get("flags", "").split())),
        "load_average_at_end": [round(load, 1) for load in os.getloadavg()],
        "muxfleet": machine.source_version(),
        **{package: found for package in _PACKAGES if (found := _version(package)) is not None},
    }
    if device is not None:
        facts |= {
            "cores": device.num_sms,
            "peak_gflops_per_s": round(device.peak_flops_per_s / 1e9),
            "memory_bandwidth_gb_per_s": round(device.memory_bandwidth_bytes_per_s / 1e9, 1),
        }
    return facts


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
