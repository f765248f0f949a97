"""Goodput of SGLang on a GPU: multiplexing with upstream's table, with muxfleet's dispatcher, and chunked prefill.

    python benchmarks/gpu/sglang_pdmux.py --model /models/Llama-3.1-8B-Instruct --gpu-type H200 --json out.json

Goodput is the highest Poisson rate at which 99 % of the gaps between tokens are within --tbt-s (50 ms) and 95 % of the
first tokens within --ttft-s. Variants run in turn, each in a process of its own, --repeats times over. Needs SGLang and
a GPU; `--device cpu` tries the script where `make test-sglang` runs, and measures nothing of interest.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from report.command import print_table
from search.goodput import RateSearch

from pdmux_actor.backends.sglang.options import SglangOptions, partitions_of
from pdmux_actor.backends.sglang.plugin_config import PluginConfig, write_config
from pdmux_actor.backends.sglang.plugin_line import PluginLine
from pdmux_actor.backends.sglang.snapshot import SLO_KEY
from pdmux_actor.scheduling.settings import SchedulerSettings
from profiler.devices import device_named
from profiler.specs import ModelSpec

VARIANTS = ("table", "muxwise", "mux", "chunked_prefill")
MAX_BATCH_TOKENS = 16384
CHUNK_TOKENS = 512
GAP_SHARE, TTFT_SHARE = 0.99, 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    gap_attainment: float
    ttft_attainment: float

    @property
    def passed(self) -> bool:
        return self.gap_attainment >= GAP_SHARE and self.ttft_attainment >= TTFT_SHARE


def engine_arguments(options: argparse.Namespace, folder: Path, socket: str) -> dict[str, object]:
    """Of one variant; everything that is not its subject is the same."""
    config = json.loads((options.model / "config.json").read_text())
    spec = ModelSpec.from_config(config, options.dtype)
    device = device_named(options.gpu_type)
    arguments: dict[str, object] = {
        "model_path": str(options.model),
        "device": options.device,
        "dtype": spec.dtype,
        "tp_size": options.tp,
        "mem_fraction_static": options.memory_share,
        "max_prefill_tokens": MAX_BATCH_TOKENS,
        "incremental_streaming_output": True,
        "disable_radix_cache": True,
        "log_level": "error",
    }
    if options.device == "cpu":
        arguments |= {"attention_backend": "torch_native", "sampling_backend": "pytorch", "disable_cuda_graph": True}
        arguments |= {"max_total_tokens": 32768, "mem_fraction_static": 0.3, "skip_server_warmup": True}
    if options.variant == "chunked_prefill":
        return arguments | {"chunked_prefill_size": CHUNK_TOKENS, "enable_mixed_chunk": True}
    plugged = options.variant != "table"
    partitions = partitions_of(SglangOptions(), device)
    path = folder / "multiplexing.yaml"
    plugin = PluginConfig(
        socket=socket,
        multiplexes=True,
        model="m",
        spec=spec,
        device=device,
        num_gpus=options.tp,
        partitions=partitions,
        policy=options.variant if plugged else "muxwise",
        scheduler=SchedulerSettings(max_batch_tokens=MAX_BATCH_TOKENS, max_running_sequences=512),
        quota_tokens=1 << 40,
    )
    groups = write_config(path, plugin)
    if not plugged:  # as upstream chooses them itself: eight groups, decode at most half of the device
        path.write_text("sm_group_num: 8\n" if options.device == "cuda" else _cpu_table(partitions))
        groups = 8
    multiplexing = {"enable_pdmux": True, "chunked_prefill_size": -1, "disable_overlap_schedule": True}
    return arguments | multiplexing | {"pdmux_config_path": str(path), "sm_group_num": groups}


def _cpu_table(partitions: tuple[tuple[int, int], ...]) -> str:
    """Upstream asks the GPU for its SMs; the stand-in of `make test-sglang` has none to ask."""
    rows = [[prefill, decode, 1 + 6 * i] for i, (prefill, decode) in enumerate(partitions)]
    return json.dumps({"sm_group_num": len(rows) + 2, "manual_divisions": rows})


async def one_request(
    engine: Any, options: argparse.Namespace, request_id: str, rng: random.Random
) -> tuple[float, list[float]]:
    """(TTFT, gaps) in seconds."""
    prompt = [rng.randrange(5, 500) for _ in range(max(8, int(rng.expovariate(1 / options.prompt_tokens))))]
    params = {
        "temperature": 0,
        "ignore_eos": True,
        "max_new_tokens": max(2, int(rng.expovariate(1 / options.output_tokens))),
        "custom_params": {SLO_KEY: [time.monotonic(), options.ttft_s, options.tbt_s]},
    }
    began_s = last_s = time.perf_counter()
    ttft_s, gaps = float("inf"), []
    stream = await engine.async_generate(input_ids=prompt, sampling_params=params, stream=True, rid=request_id)
    async for chunk in stream:
        now_s = time.perf_counter()
        if ttft_s == float("inf"):
            ttft_s = now_s - began_s
        else:
            gaps += [now_s - last_s, *[0.0] * (len(chunk["output_ids"]) - 1)]
        last_s = now_s
    return ttft_s, gaps


async def run_at(engine: Any, options: argparse.Namespace, rate_per_s: float, seed: int) -> Outcome:
    rng = random.Random(seed)
    tasks = []
    for i in range(options.requests):
        request_rng = random.Random(f"{seed}-{i}")
        tasks.append(asyncio.create_task(one_request(engine, options, f"{seed:06d}-{i:06d}", request_rng)))
        await asyncio.sleep(rng.expovariate(rate_per_s))
    results = await asyncio.gather(*tasks)
    gaps = [gap for _, of_one in results for gap in of_one]
    return Outcome(
        gap_attainment=sum(gap <= options.tbt_s for gap in gaps) / max(1, len(gaps)),
        ttft_attainment=sum(ttft <= options.ttft_s for ttft, _ in results) / len(results),
    )


async def measure(options: argparse.Namespace) -> float:
    import sglang

    with tempfile.TemporaryDirectory() as folder:
        line = PluginLine(Path(folder) / "plugin.sock", lambda load: None)
        await line.listen()
        line.expect_hello()
        engine = sglang.Engine(**engine_arguments(options, Path(folder), str(line.path)))
        if options.variant in ("mux", "muxwise"):
            hello = await asyncio.wait_for(line.hello(), 30)
            if hello.missing:
                raise SystemExit(f"the plugin is not active: {hello.missing}")
        await run_at(engine, options, options.first_rate, seed=0)  # warms up, and teaches the dispatcher
        search = RateSearch(first_per_s=options.first_rate, resolution=0.08, max_runs=4 if options.quick else 12)
        while not search.done:
            rate = search.next_rate_per_s()
            outcome = await run_at(engine, options, rate, seed=1 + search.runs)
            search.note(rate, passed=outcome.passed)
        engine.shutdown()
        await line.close()
        return search.goodput_per_s


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder in Hugging Face layout")
    parser.add_argument("--gpu-type", default="H200")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--dtype", default=None)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--memory-share", type=float, default=0.8)
    parser.add_argument("--tbt-s", type=float, default=0.05)
    parser.add_argument("--ttft-s", type=float, default=2.0)
    parser.add_argument("--prompt-tokens", type=int, default=4000, help="mean, exponential")
    parser.add_argument("--output-tokens", type=int, default=200, help="mean, exponential")
    parser.add_argument("--requests", type=int, default=400, help="of one run")
    parser.add_argument("--first-rate", type=float, default=4.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs, same shape")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--variant", choices=VARIANTS, help="only this one, in this process: prints its goodput")
    options = parser.parse_args()
    if options.quick:
        options.requests, options.repeats = min(options.requests, 60), 1
    return options


def main() -> None:
    options = arguments()
    if options.variant is not None:
        print(f"goodput {asyncio.run(measure(options))}", flush=True)
        return
    found: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    for _ in range(options.repeats):
        for variant in VARIANTS:
            run = subprocess.run(
                [sys.executable, __file__, *sys.argv[1:], "--variant", variant], stdout=subprocess.PIPE, text=True
            )
            figures = [line.split()[1] for line in run.stdout.splitlines() if line.startswith("goodput ")]
            if run.returncode or not figures:
                raise SystemExit(f"variant {variant} failed with exit code {run.returncode}")
            found[variant].append(float(figures[0]))
    rows = [
        {
            "variant": variant,
            "goodput_per_s": median(values),
            "spread": max(values) - min(values),
            "ratio_to_table": median(values) / median(found["table"]) if median(found["table"]) else None,
        }
        for variant, values in found.items()
    ]
    columns = {"variant": "{variant}", "goodput /s": "{goodput_per_s:.2f}", "spread": "{spread:.2f}"}
    columns["ratio to the table"] = "{ratio_to_table:.2f}"
    print_table(rows, columns, title=f"TBT target {options.tbt_s:g} s")
    if options.json is not None:
        report = {"model": options.model.name, "gpu": options.gpu_type, "tbt_s": options.tbt_s, "rows": rows}
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
