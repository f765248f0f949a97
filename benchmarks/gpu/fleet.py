"""A whole fleet on this GPU: Ray, gateway, HTTP, a unit of two models, asked by `muxfleet bench`; then its engine dies.

    python benchmarks/gpu/fleet.py [--json FILE] [--quick] [--rate 8 ...] [--policy mux] [--device cuda|cpu]

Random weights of --model shapes are written to --folder first, which should be memory (16 GB for an 8B model); they are
removed in the end, but where the folder was there before or --keep is said. Lengths are ShareGPT's, arrivals Poisson;
the first model is asked four times as often as the second. Targets: 0.5 s to the first token, 50 ms between tokens; a
request is in time if its first token and every gap is. Needs what muxfleet needs, Ray among it; `--device cpu` tries
the script without a GPU. At --limit-s (540) the fleet is ended wherever it is: nothing that it started keeps the GPU.
All that fleet and engines say, with the stacks of an engine that stands, lies beside FILE as FILE.fleet.txt.
"""

import argparse
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import httpx
import pandas as pd
import torch
from fleets.running_fleet import FleetProcess, running_fleet
from gpu.random_checkpoints import write_random_checkpoint
from gpu.random_models import SHAPES
from gpu.script import KeptRows
from load.workloads import WORKLOADS, make_requests
from report.command import make_parser, print_table
from report.machine_facts import machine_facts

from pdmux_actor.executor.cuda.cuda_device import known_device
from pdmux_actor.messages import Slo

TARGET = Slo(ttft_s=0.5, tbt_s=0.05)
LAST_MODELS_TURN = 5  # of so many requests one is the last model's
MAX_MODEL_LEN = 8192
KILLED_AFTER_S = 4.0
WARM_UP_REQUESTS = 24
ROW_KEY = ("what", "rate_per_s")
Row = dict[str, Any]


def arguments() -> argparse.ArgumentParser:
    parser = make_parser(__doc__, quick="runs of 8 s, not of 30")
    parser.add_argument("--model", action="append", choices=sorted(SHAPES), help="default: llama-3-8b, llama-3-1b")
    parser.add_argument("--rate", action="append", type=float, help="requests per second (default: 8, 16, 32)")
    parser.add_argument("--policy", default="mux")
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm/muxfleet-gpu-fleet"), help="of the checkpoints")
    parser.add_argument("--keep", action="store_true", help="leave the checkpoints there, for another run")
    parser.add_argument("--kv-memory", help="of the pool (default: what the models leave)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--port", type=int, default=20491)
    parser.add_argument("--limit-s", type=float, default=540.0, help="ended then (default: %(default).0f)")
    parser.add_argument("--start-s", type=float, default=150.0, help="until it serves (default: %(default).0f)")
    parser.add_argument("--resume", action="store_true", help="run only what FILE does not hold yet")
    return parser


def write_fleet(options: argparse.Namespace, models: Sequence[str]) -> Path:
    """The file, and checkpoints that are not there yet."""
    for shape in models:
        if not (options.folder / shape).exists():
            partial_folder = options.folder / f".{shape}"
            shutil.rmtree(partial_folder, ignore_errors=True)
            write_random_checkpoint(partial_folder, shape, torch.device(options.device), MAX_MODEL_LEN)
            partial_folder.rename(options.folder / shape)
    if options.device == "cuda":
        torch.cuda.empty_cache()  # of the GPU that the fleet is to have: gigabytes
    pool: Row = {"name": "gpu", "device": options.device}
    if options.kv_memory:
        pool["kv_memory"] = options.kv_memory
    slo = {"ttft_s": TARGET.ttft_s, "tbt_s": TARGET.tbt_s}
    on_gpu = options.device == "cuda"
    fleet = {
        "name": "gpu",
        "models": [{"id": shape, "source": f"./{shape}", "dtype": "bfloat16", "slo": slo} for shape in models],
        "pools": [pool | ({"gpu_type": gpu_type()} if on_gpu else {"cores": 2})],
        "engine": {"policy": options.policy}
        | ({"max_batch_tokens": 8192, "max_running_sequences": 256} if on_gpu else {}),
        "gateway": {"port": options.port, "hold_s": 120},
    }
    file: Path = options.folder / "fleet.json"
    file.write_text(json.dumps(fleet))
    return file


def gpu_type() -> str:
    """As the profiler's table has it. Ends the program where it has not."""
    gpu = torch.cuda.get_device_properties(0)
    known = known_device(gpu.name, gpu.total_memory, gpu.multi_processor_count)
    return sys.exit(f"{gpu.name}: the profiler's table has no such GPU") if known is None else known.name


def write_trace(file: Path, models: Sequence[str], *, rate_per_s: float, count: int, salt: int) -> None:
    requests = make_requests(
        WORKLOADS["sharegpt"],
        model=models[0],
        rate_per_s=rate_per_s,
        count=count,
        seed=salt,
        salt=salt,
        slo_of=lambda _: TARGET,
        longest_tokens=MAX_MODEL_LEN // 2,
    )
    rows = [
        {
            "arrival_s": timed.at_s,
            "input_tokens": len(timed.request.prompt_token_ids),
            "output_tokens": timed.request.sampling.max_tokens,
            "model": models[-1] if index % LAST_MODELS_TURN == LAST_MODELS_TURN - 1 else models[0],
        }
        for index, timed in enumerate(requests)
    ]
    pd.DataFrame(rows).to_parquet(file)


def replay(fleet: FleetProcess, folder: Path, trace: Path, seed: int) -> Row:
    """What `muxfleet bench` says. It ends with 1 where requests were lost, which the row tells."""
    out = folder / "bench.json"
    out.unlink(missing_ok=True)
    command = fleet.command("bench", fleet.url, "--trace", str(trace), "--seed", str(seed), "--json", str(out))
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if not out.exists():
        raise RuntimeError(f"muxfleet bench: {ended.stdout[-2000:]}{ended.stderr[-2000:]}")
    figures: Row = json.loads(out.read_text())
    return {**figures["total"], "models": figures["models"]}


def main() -> None:
    options = arguments().parse_args()
    check_version()
    kept = KeptRows(options.json, ROW_KEY, resume=options.resume)
    end_after(options.limit_s)
    facts = machine_facts() | {"policy": options.policy, "models": models_of(options)}
    if options.device == "cuda":
        facts = {**facts, "gpu": torch.cuda.get_device_name()}
    kept.note(facts)
    was_there = options.folder.exists()
    try:
        run(options, kept)
    except TimeIsOver as over:
        kept.failures["fleet"] = str(over)
        kept.note({"failures": kept.failures})
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)  # gigabytes of memory would stay
        if not (options.keep or was_there):
            shutil.rmtree(options.folder, ignore_errors=True)
    if kept.failures:
        sys.exit("\n".join(f"{name}: {why}" for name, why in kept.failures.items()))


def check_version() -> None:
    """Gateways and units ask for it, and would not start."""
    try:
        version("muxfleet")
    except PackageNotFoundError:
        sys.exit(
            "nothing says which version of muxfleet this is: install it, or carry collect_wheels.py --fleet's site"
        )


def models_of(options: argparse.Namespace) -> Sequence[str]:
    return options.model or ["llama-3-8b", "llama-3-1b"]


class TimeIsOver(BaseException):
    """No error of a row, after which the next one would begin."""


def end_after(limit_s: float) -> None:
    def late(*_: object) -> None:
        raise TimeIsOver(f"longer than {limit_s:.0f} s")

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, limit_s)


def run(options: argparse.Namespace, kept: KeptRows) -> None:
    """Each row is kept at once. Without a start there is no other."""
    models = models_of(options)
    options.folder.mkdir(parents=True, exist_ok=True)
    began_s = time.perf_counter()
    file = write_fleet(options, models)
    print(f"checkpoints written in {time.perf_counter() - began_s:.1f} s", flush=True)
    trace = options.folder / "trace.parquet"
    span_s = 8.0 if options.quick else 30.0
    with ExitStack() as ends:
        fleets: list[FleetProcess] = []

        def start() -> Row:
            began_s = time.perf_counter()
            log = None if options.json is None else options.json.with_suffix(".fleet.txt")
            running = running_fleet(file, options=["-v"], start_s=options.start_s, log=log)
            fleets.append(ends.enter_context(running))
            return {"seconds": time.perf_counter() - began_s}

        kept.rows = [row for row in kept.rows if row["what"] != "start"]  # every run starts its own
        kept.attempt({"what": "start", "rate_per_s": None}, start)
        if not fleets:
            return
        fleet = fleets[0]
        print(f"serving after {kept.rows[-1]['seconds']:.1f} s", flush=True)

        def asked_at(rate: float, salt: int, count: int | None = None) -> Row:
            write_trace(trace, models, rate_per_s=rate, count=count or round(rate * span_s), salt=salt)
            return replay(fleet, options.folder, trace, salt)

        kept.attempt({"what": "warm up", "rate_per_s": 4.0}, lambda: asked_at(4.0, 99, WARM_UP_REQUESTS))
        for number, rate in enumerate(options.rate or [8.0, 16.0, 32.0]):
            kept.attempt({"what": "replay", "rate_per_s": rate}, partial(asked_at, rate, number))
        kept.attempt(
            {"what": "engine killed", "rate_per_s": 4.0},
            lambda: kill_under_load(fleet, options.folder, trace, models),
        )
        show(kept.rows)
        if options.json:
            metrics = httpx.get(f"{fleet.url}/metrics", timeout=30, trust_env=False).text
            options.json.with_suffix(".metrics.txt").write_text(metrics)


def kill_under_load(fleet: FleetProcess, folder: Path, trace: Path, models: Sequence[str]) -> Row:
    """The only unit's engine dies while it serves."""
    write_trace(trace, models, rate_per_s=4.0, count=32, salt=1000)
    victim = fleet.engine()
    timer = threading.Timer(KILLED_AFTER_S, victim.kill)
    timer.start()
    began_s = time.perf_counter()
    row = replay(fleet, folder, trace, 1000)
    fleet.wait_until_replaced(victim, fleet.engine)
    return {**row, "seconds": time.perf_counter() - began_s - KILLED_AFTER_S}


def show(rows: Sequence[Row]) -> None:
    columns = {
        "what": "{what}",
        "requests/s": "{rate_per_s:.0f}",
        "requests": "{requests}",
        "lost": "{lost}",
        "failed": "{failed}",
        "refused": "{rejected}",
        "in time": "{request_attainment:.3f}",
        "ttft p50": "{ttft_s[p50]:.3f}",
        "p99": "{ttft_s[p99]:.3f}",
        "tbt p50": "{tbt_s[p50]:.4f}",
        "p99 ": "{tbt_s[p99]:.4f}",
    }
    print_table(rows, columns)


if __name__ == "__main__":
    main()
