"""What a result depends on beside the code."""

import os
from importlib.metadata import version
from pathlib import Path


def processor_name() -> str:
    return _cpuinfo().get("model name", "unknown")


def facts() -> dict[str, object]:
    flags = set(_cpuinfo().get("flags", "").split())
    return {
        "cpu": processor_name(),
        "isa": sorted(flags & {"avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16"}),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
        "torch": version("torch"),
        "transformers": version("transformers"),
    }


def _cpuinfo() -> dict[str, str]:
    """Of the first core; empty where the system does not tell."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    fields = (part.split(":", 1) for part in reversed(lines) if ":" in part)
    return {key.strip(): value.strip() for key, value in fields}
