"""What a result depends on beside the code."""

import os
from importlib.metadata import version
from pathlib import Path


def facts() -> dict[str, object]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    fields = dict(part.split(":", 1) for part in reversed(lines) if ":" in part)
    named = {key.strip(): value.strip() for key, value in fields.items()}
    flags = set(named.get("flags", "").split())
    return {
        "cpu": named.get("model name", "unknown"),
        "isa": sorted(flags & {"avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16"}),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
        "torch": version("torch"),
        "transformers": version("transformers"),
    }
