"""What a result needs beside it to be read: the machine, and how busy it was."""

import datetime
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import torch

from profiler.specs import DeviceSpec


def machine_facts(device: DeviceSpec, *, virtual: bool = False) -> dict[str, object]:
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "time": "virtual, from step times measured on this machine" if virtual else "real",
        "processor": _processor(),
        "cores": device.num_sms,
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "peak_gflops_per_s": round(device.peak_flops_per_s / 1e9),
        "memory_bandwidth_gb_per_s": round(device.memory_bandwidth_bytes_per_s / 1e9, 1),
        "load_average_at_end": [round(load, 1) for load in os.getloadavg()],
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def write_report(path: Path, machine: Mapping[str, object], rows: Sequence[Mapping[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n", encoding="utf-8")


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = (line for line in info.read_text(encoding="utf-8").splitlines() if line.startswith("model name"))
        return next(lines, platform.processor()).partition(":")[2].strip()
    return platform.processor()
