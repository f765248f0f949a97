"""An 8B and a 1B model on one GPU, asked 1:4: both in one engine against each alone on half of the SMs.

    python benchmarks/gpu/shared.py [--policy mux ...] [--quick] [--json FILE [--resume] [--plot PNG]]

Requests are ShareGPT-shaped. Goodput is the highest total rate at which both models have 99 % of their gaps within
--tbt-s and 95 % of their first tokens in time. "half" gives a model its own engine on one half of the SMs (a green
context), half of the KV pool, and the GPU's memory bandwidth to itself, since the other half idles meanwhile: what two
halves attain together is at most the smaller of their rates. Lanes take turns within a half.
"""

import argparse
import gc
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from engines.engine_session import EngineSession
from gpu.kv_room import kv_pool_bytes
from gpu.random_models import hold_random_model
from gpu.script import KeptRows, Row, draw_bars, make_parser, run_script
from load.request_times import TimedRequest
from load.workloads import WORKLOADS, Workload, make_requests
from report.command import print_table
from rich.console import Console
from rich.progress import track
from search.goodput import RatePlan, RequestsAt, add_rate_arguments, rate_plan, search_rate, warm_up

from pdmux_actor.executor.torch_cuda import TorchCudaExecutor
from pdmux_actor.scheduling.policies.registry import POLICIES
from pdmux_actor.scheduling.settings import SchedulerSettings

BLOCK_BYTES = 16 * 1024
POPULARITY: Mapping[str, int] = MappingProxyType({"llama-3-8b": 1, "llama-3-1b": 4})
FIRST_PER_S = 30.0
LEAST_REQUESTS = 80  # of both models in a run
SETTINGS = SchedulerSettings(
    adapt_quotas=True,
    chunk_budget_tokens=1024,
    max_batch_tokens=8192,
    longest_chunk_tokens=8192,
    early_steps=True,
    max_running_sequences=256,
)
ROW_KEY = ("system", "policy")


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """`half` None: the whole device for all `models`; else one of its halves (0, 1)."""

    name: str
    policy: str
    models: tuple[str, ...]
    half: int | None


class Gpu(Protocol):
    def open(self, half: int | None) -> TorchCudaExecutor: ...


def systems(policies: Sequence[str], popularity: Mapping[str, int]) -> list[System]:
    """Halves run the default policy, which without partitions lets decode and prefill take turns."""
    shared = [System(name="shared", policy=policy, models=tuple(popularity), half=None) for policy in policies]
    halves = [
        System(name=f"half: {model}", policy=policies[0], models=(model,), half=half)
        for half, model in enumerate(popularity)
    ]
    return [shared[0], *halves, *shared[1:]]


def open_session(executor: TorchCudaExecutor, system: System, *, dtype: str) -> EngineSession:
    held = []
    for shape in system.models:
        info = hold_random_model(executor, shape, dtype)
        held.append(info)
    session = EngineSession(
        checkpoints={}, policy=system.policy, settings=SETTINGS, executor=executor, held=tuple(held)
    )
    session.wait_until_attached()
    return session


def requests_of(
    models: Sequence[str],
    popularity: Mapping[str, int],
    plan: RatePlan,
    workload: Workload,
    total_per_s: float,
    salt: int,
) -> list[TimedRequest]:
    """Of `models`, as they come when all models together get `total_per_s`: the same arrivals in every system."""
    total = sum(popularity.values())
    timed: list[TimedRequest] = []
    for number, (model, share) in enumerate(popularity.items()):
        if model in models:
            timed += make_requests(
                workload,
                model=model,
                rate_per_s=total_per_s * share / total,
                count=max(2, plan.count(total_per_s) * share // total),
                seed=number,
                salt=salt,
                slo_of=plan.slo_of,
            )
    return sorted(timed, key=lambda request: request.at_s)


def measure_all(
    kept: KeptRows,
    gpu: Gpu,
    plan: RatePlan,
    policies: Sequence[str],
    *,
    popularity: Mapping[str, int] = POPULARITY,
    scale: float = 1.0,
    dtype: str = "bfloat16",
) -> None:
    workload = replace(WORKLOADS["sharegpt"], scale=scale)
    for system in track(systems(policies, popularity), description="systems", console=Console(stderr=True)):
        requests_at = _requests_at(system.models, popularity, plan, workload)
        key = {"system": system.name, "policy": system.policy}
        kept.attempt(
            key, lambda system=system, at=requests_at: _measure(kept, gpu.open(system.half), system, plan, at, dtype)
        )
        gc.collect()  # the engine's cycles hold the KV pool; the next one needs its memory
        torch.cuda.empty_cache()  # and that of streams that are gone


def _measure(
    kept: KeptRows, executor: TorchCudaExecutor, system: System, plan: RatePlan, requests_at: RequestsAt, dtype: str
) -> dict[str, object]:
    kept.note_gpu(executor.device, executor.chosen)
    session = open_session(executor, system, dtype=dtype)
    warm_up(session, plan, requests_at)
    found = search_rate(session, plan, requests_at, system.models)
    session.close()
    return {
        "sms": executor.device.num_sms,
        "goodput_per_s": found.goodput_per_s,
        "failing_per_s": found.failing_per_s,
        "runs": found.runs,
    }


def _requests_at(
    models: Sequence[str], popularity: Mapping[str, int], plan: RatePlan, workload: Workload
) -> RequestsAt:
    return lambda rate_per_s, salt: requests_of(models, popularity, plan, workload, rate_per_s, salt)


def gains(rows: Sequence[Row]) -> dict[str, float]:
    """Goodput of each shared engine over that of the two halves together; without both halves, none."""
    halves = [row["goodput_per_s"] for row in rows if row["system"].startswith("half")]
    if len(halves) < 2 or min(halves) == 0:
        return {}
    return {row["policy"]: row["goodput_per_s"] / min(halves) for row in rows if row["system"] == "shared"}


def draw(figure: Any, rows: Sequence[Row]) -> None:
    labelled = [
        {**row, "title": "ShareGPT, 8B : 1B = 1 : 4", "bar": f"{row['system']} {row['policy']}"} for row in rows
    ]
    draw_bars(figure, labelled, group="title", bar="bar", value="goodput_per_s", label="goodput, total 1/s")


def measure_on_gpu(options: argparse.Namespace, kept: KeptRows) -> None:
    from gpu.half_device import HalvableGpu

    if options.quick:
        options.window_s, options.max_runs = 6.0, 4
    plan = rate_plan(options, first_per_s=FIRST_PER_S, least_requests=LEAST_REQUESTS)
    gpu = HalvableGpu(
        kv_pool_bytes=kv_pool_bytes(options.kv_gib), block_bytes=BLOCK_BYTES, limits=SETTINGS.launch_limits()
    )
    measure_all(kept, gpu, plan, options.policy or ["mux", "adbs"])


def show(kept: KeptRows) -> None:
    columns = {"system": "{system}", "policy": "{policy}", "SMs": "{sms}", "goodput 1/s": "{goodput_per_s:.2f}"}
    print_table(kept.rows, columns | {"next that failed": "{failing_per_s:.2f}"})
    for policy, gain in gains(kept.rows).items():
        Console().print(f"shared with {policy} over two halves: {gain:.2f}")


def main() -> None:
    parser = make_parser(__doc__, quick="short runs, fewer of them")
    parser.add_argument("--policy", action="append", choices=sorted(POLICIES), help="default: mux, adbs")
    parser.add_argument("--kv-gib", type=float, help="KV pool (default: 80, or what fits)")
    add_rate_arguments(parser, window_s=12.0, max_runs=6)
    run_script(parser, ROW_KEY, measure_on_gpu, show, draw)


if __name__ == "__main__":
    main()
