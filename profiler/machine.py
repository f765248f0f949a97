"""Records what a measurement needs beside it to be read: the machine, and how busy it was."""

import datetime
import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

_PROGRAM_TIMEOUT_S = 10.0


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


def gpu_facts() -> dict[str, str]:
    """Reads the first GPU's name and clocks, as nvidia-smi says; nothing where there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    query = [program, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, check=False, timeout=_PROGRAM_TIMEOUT_S)
    fields = answer.stdout.partition("\n")[0].split(", ")
    return dict(zip(("gpu", "driver"), fields, strict=True)) if len(fields) == 2 else {}


def source_version() -> str:
    """The commit of a checkout, with a mark if files were changed since; elsewhere the release."""
    git, folder = shutil.which("git"), Path(__file__).parent
    if git is not None and (folder.parent / ".git").exists():
        query = [git, "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"]
        answer = subprocess.run(query, capture_output=True, text=True, check=False, timeout=_PROGRAM_TIMEOUT_S)
        if answer.returncode == 0:
            return answer.stdout.strip()
    try:
        return version("muxfleet")
    except PackageNotFoundError:
        return "unknown"


def processor_name() -> str:
    return cpuinfo().get("model name") or platform.processor() or "unknown"


def cpuinfo() -> dict[str, str]:
    """Reads the first core's entry; empty where the system does not tell."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    fields = (part.split(":", 1) for part in reversed(lines) if ":" in part)
    return {key.strip(): value.strip() for key, value in fields}
