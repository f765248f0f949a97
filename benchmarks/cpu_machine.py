"""What a result depends on beside the code."""

import os
from importlib.metadata import version

from profiler.machine import cpuinfo, processor_name


def facts() -> dict[str, object]:
    flags = set(cpuinfo().get("flags", "").split())
    return {
        "cpu": processor_name(),
        "isa": sorted(flags & {"avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16"}),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
        "torch": version("torch"),
        "transformers": version("transformers"),
    }
