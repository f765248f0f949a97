"""What a model's return takes on the CPU engine: woken from host memory, or read from its checkpoint.

Through an engine process, as a unit asks for it; the three ways take turns, in another order in every round. "cached"
reads files that the system has in memory, "disk" files that it was told to drop.

    python benchmarks/wake.py [--json FILE] [--quick]
"""

import asyncio
import os
import random
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from engines.llama_checkpoint import DEFAULT_CACHE, shape_of
from report.command import make_parser, write_report
from report.machine_facts import machine_facts

from pdmux_actor.backends.native import NativeEngine
from pdmux_actor.lease import ModelAssignment
from pdmux_actor.messages import Slo
from pdmux_actor.models.random_checkpoint import CheckpointShape, write_random_checkpoint
from pdmux_actor.serving.commands import EngineSettings

SHAPES: Mapping[str, CheckpointShape] = {
    "107 MB": shape_of(8, 512, 1536, 8, 4),
    "480 MB": shape_of(14, 896, 2432, 14, 7),
}
DTYPES = ("float32", "bfloat16")  # the checkpoints are float32
WAYS = ("wake", "cached", "disk")
HOST_BYTES = 4 << 30


async def seconds_of(engine: NativeEngine, model: ModelAssignment, way: str) -> tuple[float, float | None]:
    """Of the model's return, and of its way into host memory before."""
    put_s = None
    if way == "wake":
        await engine.add_model(model)
        began_s = time.perf_counter()
        await engine.remove_model(model.model, sleep=True)
        put_s = time.perf_counter() - began_s
        assert model.model in engine.asleep(), "host memory has room for it"
    elif way == "disk":
        drop_from_cache(Path(model.source))
    began_s = time.perf_counter()
    await engine.add_model(model)
    took_s = time.perf_counter() - began_s
    await engine.remove_model(model.model)
    return took_s, put_s


def drop_from_cache(folder: Path) -> None:
    for file in folder.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


async def measure(folder: Path, dtype: str, rounds: int) -> dict[str, list[float]]:
    settings = EngineSettings(kind="torch_cpu", kv_pool_bytes=16 << 20, host_memory_bytes=HOST_BYTES)
    model = ModelAssignment(
        model="m", source=str(folder), quota_blocks=1000, slo=Slo(ttft_s=1.0, tbt_s=0.1), dtype=dtype
    )
    engine, found, draw = NativeEngine(settings), defaultdict(list), random.Random(0)
    await engine.start()
    try:
        await seconds_of(engine, model, "wake")  # threads and libraries come up
        for _ in range(rounds):
            for way in draw.sample(WAYS, len(WAYS)):
                took_s, put_s = await seconds_of(engine, model, way)
                found[way].append(took_s)
                if put_s is not None:
                    found["sleep"].append(put_s)
    finally:
        await engine.stop()
    return dict(found)


def main() -> None:
    options = make_parser(__doc__, quick="the small checkpoint, three rounds").parse_args()
    rows = []
    DEFAULT_CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=DEFAULT_CACHE) as parent:  # /tmp may lie in memory, which drops no file
        for size, shape in list(SHAPES.items())[: 1 if options.quick else None]:
            folder = Path(parent) / size.replace(" ", "")
            write_random_checkpoint(folder, shape, seed=0)
            for dtype in DTYPES:
                found = asyncio.run(measure(folder, dtype, 3 if options.quick else 10))
                for way, seconds in found.items():
                    low_s, high_s = min(seconds), max(seconds)
                    median_s = statistics.median(seconds)
                    print(f"{size} {dtype:9} {way:7} {median_s:6.3f} s ({low_s:.3f}..{high_s:.3f}, {len(seconds)})")
                    rows.append({"checkpoint": size, "dtype": dtype, "way": way, "seconds": seconds})
    write_report(options.json, machine_facts(), rows)


if __name__ == "__main__":
    main()
