"""What a step takes by transformers' modelling code beside the native decoder, on the same Llama and the same engine.

Launches made by hand, one core each, the two by turns. CPU seconds of the whole process, so that a machine with other
work gives the same ratios; `--clock wall` counts wall time, for a machine that is free.

    python benchmarks/model_code.py [--json FILE] [--quick] [--clock wall]
"""

import statistics
import time
from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from engines.hand_made_launches import HandMadeLaunches
from engines.llama_checkpoint import DEFAULT_CACHE, llama_checkpoint
from report.command import make_parser, print_table, write_report
from report.machine_facts import machine_facts

from pdmux_actor.executor.loading import ModelImplementation
from pdmux_actor.executor.torch_cpu import TorchCpuExecutor
from pdmux_actor.model_info import ModelSource
from pdmux_actor.scheduling.launch import ComputeLaunch
from profiler.specs import DeviceSpec

DTYPES = ("float32", "bfloat16")
WAYS: Mapping[str, ModelImplementation] = {"native": "auto", "transformers": "transformers"}
DECODES = ((1, 128), (8, 128), (8, 512))  # sequences, tokens of each
PROMPTS = (64, 512)
CLOCKS: Mapping[str, Callable[[], float]] = {"cpu": time.process_time, "wall": time.perf_counter}
DEVICE = DeviceSpec(
    name="one core",
    num_sms=1,
    peak_flops_per_s=1e11,
    memory_bandwidth_bytes_per_s=1e10,
    memory_bytes=1 << 33,
    launch_overhead_s=1e-5,
)


def opened(folder: Path, dtype: str, implementation: ModelImplementation) -> HandMadeLaunches:
    executor = TorchCpuExecutor(
        kv_pool_bytes=256 << 20, block_bytes=16384, num_cores=1, device=DEVICE, implementation=implementation
    )
    info = executor.load_model(ModelSource(model="llama", source=str(folder), dtype=dtype, max_model_len=2048))
    return HandMadeLaunches(executor, info)


def by_turns(
    engines: Mapping[str, HandMadeLaunches],
    launches: Mapping[str, Callable[[], ComputeLaunch]],
    rounds: int,
    clock: Callable[[], float],
) -> dict[str, list[float]]:
    """Seconds of each round, after one that does not count."""
    found: dict[str, list[float]] = {way: [] for way in engines}
    for _ in range(rounds + 1):
        for way, engine in engines.items():
            began_s = clock()
            engine.run(launches[way]())
            found[way].append(clock() - began_s)
    return {way: seconds[1:] for way, seconds in found.items()}


def row_of(dtype: str, work: str, found: Mapping[str, list[float]]) -> dict[str, object]:
    ratios = [slow / fast for fast, slow in zip(found["native"], found["transformers"], strict=True)]
    return {
        "dtype": dtype,
        "work": work,
        **{f"{way}_ms": statistics.median(seconds) * 1e3 for way, seconds in found.items()},
        "ratio": statistics.median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
    }


def measure(folder: Path, dtype: str, rounds: int, clock: Callable[[], float]) -> list[dict[str, object]]:
    engines = {way: opened(folder, dtype, implementation) for way, implementation in WAYS.items()}
    rows = []
    for count, tokens in DECODES:
        held = {way: engine.sequences([tokens] * count) for way, engine in engines.items()}
        steps = {way: partial(engine.decode_launch, held[way]) for way, engine in engines.items()}
        rows.append(row_of(dtype, f"decode, {count} x {tokens} tokens", by_turns(engines, steps, rounds, clock)))
        for way, engine in engines.items():
            engine.free(held[way])
    for tokens in PROMPTS:
        held = {way: engine.sequences([tokens]) for way, engine in engines.items()}
        prefills = {way: partial(engine.prefill_launch, held[way]) for way, engine in engines.items()}
        found = by_turns(engines, prefills, max(3, rounds // 4), clock)
        rows.append(row_of(dtype, f"prefill, {tokens} tokens", found))
    for engine in engines.values():
        engine.executor.close()
    return rows


def parser() -> ArgumentParser:
    made = make_parser(__doc__, quick="four layers, few rounds")
    made.add_argument("--clock", choices=sorted(CLOCKS), default="cpu")
    return made


def main() -> None:
    options = parser().parse_args()
    folder = llama_checkpoint(DEFAULT_CACHE, num_layers=4 if options.quick else 16)
    rounds = 8 if options.quick else 16
    rows = [row for dtype in DTYPES for row in measure(folder, dtype, rounds, CLOCKS[options.clock])]
    columns = {
        "dtype": "{dtype}",
        "work": "{work}",
        "native": "{native_ms:.1f} ms",
        "transformers": "{transformers_ms:.1f} ms",
        "ratio": "{ratio:.2f} ({lowest:.2f}..{highest:.2f})",
    }
    print_table(rows, columns)
    write_report(options.json, machine_facts(), rows, clock=options.clock)


if __name__ == "__main__":
    main()
