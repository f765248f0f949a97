"""What a measurement needs beside it to be read: the machine, and how busy it was."""

import datetime
import os
import platform
from pathlib import Path

import psutil


def machine_facts() -> dict[str, str]:
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "processor": processor_name(),
        "cores": str(psutil.cpu_count() or "unknown"),
        "memory_gib": str(round(psutil.virtual_memory().total / 2**30)),
        "load_average": f"{os.getloadavg()[0]:.2f}",
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def processor_name() -> str:
    return cpuinfo().get("model name") or platform.processor() or "unknown"


def cpuinfo() -> dict[str, str]:
    """Of the first core; empty where the system does not tell."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    fields = (part.split(":", 1) for part in reversed(lines) if ":" in part)
    return {key.strip(): value.strip() for key, value in fields}
