"""Goodput of the dispatch policies on this GPU: same engine, same arrivals, TBT target 50 ms.

    python benchmarks/gpu/goodput.py --workload sharegpt [--policy mux ...] [--json FILE [--resume] [--plot PNG]]

Workloads are those of benchmarks/policies.py at full length (MuxWise Table 1). chunked_prefill is run with several
token budgets and its best one counts, as if it had been tuned offline. A rate passes when 99 % of the gaps and 95 % of
the first tokens are in time; a first token is due after --ttft-s plus --ttft-s-per-kilotoken for its prompt. One
workload takes about nine minutes; the next call goes on with --resume.
"""

import argparse
import gc
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from engine_run import EngineSession, TimedRequest
from gpu.charts import draw_bars, draw_report
from gpu.kept_rows import KeptRows, Row, add_arguments, check_arguments, gpu_facts
from gpu.random_models import SHAPES, random_model
from gpu.rate_runs import RatePlan, add_rate_arguments, rate_plan, search_rate
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from workloads import WORKLOADS, Workload, make_requests

from pdmux_actor.errors import DeviceUnavailable
from pdmux_actor.executor.torch_cuda import TorchCudaExecutor, open_cuda_executor
from pdmux_actor.models.triton_operators import TritonOperators
from pdmux_actor.scheduling.policies.registry import POLICIES
from pdmux_actor.scheduling.settings import SchedulerSettings

BLOCK_BYTES = 16 * 1024
BUDGETS = (1024, 512, 2048)
MAX_BATCH_TOKENS = 8192
MAX_SEQUENCES = 256
DEFAULT_POLICIES = ("mux", "chunked_prefill", "muxwise", "duetserve", "prefill_first")
ROW_KEY = ("workload", "policy", "chunk_budget_tokens")
# Where a search begins (requests per second), and the least number of requests of a run: long prompts are few.
FIRST_GUESSES: Mapping[str, tuple[float, int]] = MappingProxyType(
    {
        "sharegpt": (24.0, 64),
        "loogle": (0.5, 12),
        "openthoughts": (1.0, 32),
        "conversation": (1.5, 24),
        "tool_agent": (2.0, 24),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    policy: str
    budget_tokens: int


def variants(policies: tuple[str, ...]) -> list[Variant]:
    return [
        Variant(policy=policy, budget_tokens=budget)
        for policy in policies
        for budget in (BUDGETS if policy == "chunked_prefill" else BUDGETS[:1])
    ]


def open_session(executor: TorchCudaExecutor, shape: str, variant: Variant, *, dtype: str) -> EngineSession:
    loaded = random_model(
        shape, device=executor.torch_device, block_bytes=executor.block_bytes, dtype=dtype, operators=TritonOperators()
    )
    executor.hold(loaded)
    settings = SchedulerSettings(
        chunk_budget_tokens=variant.budget_tokens,
        max_batch_tokens=MAX_BATCH_TOKENS,
        max_running_sequences=MAX_SEQUENCES,
    )
    return EngineSession(
        checkpoints={}, policy=variant.policy, settings=settings, executor=executor, held=(loaded.info,)
    )


def measure(session: EngineSession, plan: RatePlan, workload: Workload, shape: str) -> dict[str, object]:
    longest_tokens = int(SHAPES[shape]["max_position_embeddings"]) - 64

    def requests_at(rate_per_s: float, salt: int) -> list[TimedRequest]:
        return make_requests(
            workload,
            model=shape,
            rate_per_s=rate_per_s,
            count=plan.count(rate_per_s),
            seed=0,
            salt=salt,
            slo_of=plan.slo_of,
            longest_tokens=longest_tokens,
        )

    found = search_rate(session, plan, requests_at, (shape,))
    failing_per_s = found.failing_per_s or found.goodput_per_s
    return {
        "tbt_target": f"{plan.tbt_s} s",
        "goodput_per_s": found.goodput_per_s,
        "spread": failing_per_s - found.goodput_per_s,
        "bracketed": found.bracketed,
        "runs": found.runs,
    }


def measure_all(
    kept: KeptRows, options: argparse.Namespace, open_executor: Callable[[], TorchCudaExecutor], *, dtype: str
) -> None:
    chosen, workloads = variants(tuple(options.policy or DEFAULT_POLICIES)), options.workload or ["sharegpt"]
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("goodput", total=len(chosen) * len(workloads))
        for variant in chosen:
            keys: list[dict[str, Any]] = [
                {"workload": w, "policy": variant.policy, "chunk_budget_tokens": variant.budget_tokens}
                for w in workloads
            ]
            if not any(kept.wants(**key) for key in keys):
                continue
            executor = open_executor()
            kept.note({**gpu_facts(executor.device, partitioned_by=executor.partitioning), "model": options.model})
            session = open_session(executor, options.model, variant, dtype=dtype)
            for key in keys:
                progress.update(task, description=" ".join(map(str, key.values())))
                if kept.wants(**key):
                    first_per_s, least_requests = FIRST_GUESSES[key["workload"]]
                    plan = rate_plan(options, first_per_s=first_per_s, least_requests=least_requests)
                    workload = replace(WORKLOADS[key["workload"]], scale=options.scale)
                    kept.add({**key, **measure(session, plan, workload, options.model)})
                progress.advance(task)
            session.close()
            del session, executor
            gc.collect()  # the engine's cycles hold the KV pool; the next one needs its memory
            torch.cuda.empty_cache()  # and that of streams that are gone


def best_rows(rows: list[Row]) -> list[Row]:
    """Of the budgets of one policy and workload, the one with the highest goodput."""
    best: dict[tuple[object, object], Row] = {}
    for row in rows:
        key = row["workload"], row["policy"]
        if key not in best or row["goodput_per_s"] > best[key]["goodput_per_s"]:
            best[key] = row
    return list(best.values())


def draw(figure: Any, rows: list[Row]) -> None:
    draw_bars(figure, best_rows(rows), group="workload", bar="policy", value="goodput_per_s", label="goodput, 1/s")


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(SHAPES), default="llama-3-8b")
    parser.add_argument("--workload", action="append", choices=list(WORKLOADS), help="default: sharegpt")
    parser.add_argument("--policy", action="append", choices=sorted(POLICIES))
    parser.add_argument("--scale", type=float, default=1.0, help="divides all lengths (default: 1)")
    parser.add_argument("--kv-gib", type=float, default=80.0)
    add_rate_arguments(parser, window_s=12.0, max_runs=6)
    parser.add_argument("--quick", action="store_true", help="short runs, fewer of them")
    add_arguments(parser)
    return parser


def main() -> None:
    parser = arguments()
    options = parser.parse_args()
    check_arguments(parser, options)
    if options.quick:
        options.window_s, options.max_runs = 6.0, 4
    if not options.replot:
        kept = KeptRows(options.json, ROW_KEY, resume=options.resume, limit_s=options.limit_s)
        kv_pool_bytes = int(options.kv_gib * (1 << 30))
        try:
            measure_all(
                kept,
                options,
                lambda: open_cuda_executor(kv_pool_bytes=kv_pool_bytes, block_bytes=BLOCK_BYTES),
                dtype="bfloat16",
            )
        except DeviceUnavailable as error:
            sys.exit(str(error))
        table = Table("workload", "policy", "budget", "goodput 1/s", "next that failed")
        for row in best_rows(kept.rows):
            failing = row["goodput_per_s"] + row["spread"] if row["bracketed"] else float("nan")
            numbers = f"{row['goodput_per_s']:.2f}", f"{failing:.2f}"
            table.add_row(row["workload"], row["policy"], str(row["chunk_budget_tokens"]), *numbers)
        Console().print(table)
    if options.plot:
        draw_report(options.json, options.plot, draw)


if __name__ == "__main__":
    main()
