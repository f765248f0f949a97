"""What a result needs beside it to be read: the machine, and how busy it was."""

import datetime
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import torch

from profiler.machine import processor_name
from profiler.specs import DeviceSpec


def machine_facts(device: DeviceSpec, *, virtual: bool = False) -> dict[str, object]:
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "time": "virtual, from step times measured on this machine" if virtual else "real",
        "processor": processor_name(),
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
    # Whoever is killed while writing leaves the file as it was.
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(path)
