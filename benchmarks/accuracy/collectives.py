"""All-reduces of public profiles within one node, as far as their links are those of our devices."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from profiler.gpus.a100_80g import DEVICE as A100_80G
from profiler.gpus.h100 import DEVICE as H100
from profiler.gpus.h200 import DEVICE as H200
from profiler.latency import Floats
from profiler.readers.aiconfigurator import column, read_rows
from profiler.specs import DeviceSpec

_BOUNDS = (0, 1 << 20, 1 << 26)  # bytes: answers, and prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduceRows:
    """Rows of so many GPUs and a range of sizes. APEX has NCCL's own times, Vidur those that torch's host saw."""

    source: str
    device: DeviceSpec
    num_gpus: int
    sizes: str
    size_bytes: Floats
    seconds: Floats


def all_reduce_rows(folder: Path) -> Iterator[AllReduceRows]:
    for source, device, num_gpus, size_bytes, seconds in (*_apex(folder), *_vidur(folder)):
        for least, most in itertools.pairwise(_BOUNDS):
            inside = (size_bytes > least) & (size_bytes <= most)
            if inside.any():
                yield AllReduceRows(
                    source=source,
                    device=device,
                    num_gpus=num_gpus,
                    sizes="up to 1 MiB" if least == 0 else "1 to 64 MiB",
                    size_bytes=size_bytes[inside],
                    seconds=seconds[inside],
                )


_Rows = tuple[str, DeviceSpec, int, Floats, Floats]


def _apex(folder: Path) -> Iterator[_Rows]:
    columns = ("collective", "gpu", "num_nodes", "num_gpus_per_node", "dtype", "size_kb", "time_us")
    rows = read_rows(folder / "apex_collectives.parquet", columns)
    rows = rows[(rows["collective"] == "all_reduce") & (rows["num_nodes"] == 1) & (rows["dtype"] == "half")]
    for name, device in (("H100-SXM-80GB", H100), ("H200-SXM-141GB", H200)):
        for num_gpus in (2, 4, 8):
            found = rows[(rows["gpu"] == name) & (rows["num_gpus_per_node"] == num_gpus)]
            yield "APEX", device, num_gpus, 1024 * column(found, "size_kb"), column(found, "time_us") / 1e6


def _vidur(folder: Path) -> Iterator[_Rows]:
    columns = ("node", "collective", "num_workers", "devices_per_node", "size_bytes", "median_ms")
    rows = read_rows(folder / "vidur_collectives.parquet", columns)
    rows = rows[(rows["collective"] == "all_reduce") & (rows["num_workers"] == rows["devices_per_node"])]
    for node, device in (("a100_dgx", A100_80G), ("h100_dgx", H100)):
        for num_gpus in (2, 4, 8):
            found = rows[(rows["node"] == node) & (rows["num_workers"] == num_gpus)]
            yield "Vidur", device, num_gpus, column(found, "size_bytes"), column(found, "median_ms") / 1e3
