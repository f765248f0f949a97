"""Goodput of the dispatch policies on this GPU: one engine, same arrivals, TBT target 50 ms.

    python benchmarks/gpu/goodput.py [--workload sharegpt ...] [--policy mux ...] [--json FILE [--resume] [--plot PNG]]

Workloads are those of benchmarks/policies.py at full length (MuxWise Table 1). All policies run in the same engine, one
after the other: model, captured decode steps and what the scheduler learned of launches stay. chunked_prefill is then
tried with other token budgets (an engine of its own each) and its best one counts, as if it had been tuned offline. A
rate passes when 99 % of the gaps and 95 % of the first tokens are in time; a first token is due after --ttft-s plus
--ttft-s-per-kilotoken for its prompt. What is not answered 4 s after the last arrival counts for the tokens it has.
"""

import argparse
import gc
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from engines.engine_session import EngineSession
from gpu.kv_room import kv_pool_bytes
from gpu.random_models import SHAPES, hold_random_model
from gpu.script import KeptRows, Row, draw_bars, make_parser, run_script
from load.request_times import TimedRequest
from load.workloads import WORKLOADS, make_requests
from report.command import print_table
from rich.console import Console
from rich.progress import Progress
from search.goodput import RatePlan, RequestsAt, add_rate_arguments, rate_plan, search_rate, warm_up

from pdmux_actor.executor.open_cuda import open_cuda_executor
from pdmux_actor.executor.torch_cuda import TorchCudaExecutor
from pdmux_actor.scheduling.policies.registry import POLICIES
from pdmux_actor.scheduling.settings import SchedulerSettings
from placement.launch_limits import LaunchLimits

BLOCK_BYTES = 16 * 1024
BUDGETS = (1024, 512, 2048)
BEATS = 1.1  # the best rate so far by so much, if another budget is to count
MORE_RUNS = 2
SALTS_OF_A_SEARCH = 1000
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


def open_session(executor: TorchCudaExecutor, shape: str, policy: str, budget: int, *, dtype: str) -> EngineSession:
    info = hold_random_model(executor, shape, dtype)
    settings = SchedulerSettings(
        chunk_budget_tokens=budget,
        max_batch_tokens=MAX_BATCH_TOKENS,
        longest_chunk_tokens=MAX_BATCH_TOKENS,
        early_steps=True,
        max_running_sequences=MAX_SEQUENCES,
    )
    session = EngineSession(checkpoints={}, policy=policy, settings=settings, executor=executor, held=(info,))
    session.wait_until_attached()
    return session


class Searches:
    """Of one engine: its workloads' arrivals, and which of them it is warm for."""

    def __init__(self, session: EngineSession, kept: KeptRows, options: argparse.Namespace) -> None:
        self._session = session
        self._kept = kept
        self._options = options
        self._warm: set[str] = set()
        self._searches = 0

    def measure(self, workload: str, policy: str) -> dict[str, object]:
        """Begins near what other policies attained; another budget of a policy ends at once unless it beats the best
        one so far.
        """
        best = [row for row in self._kept.rows if row["workload"] == workload]
        same_policy = [row["goodput_per_s"] for row in best if row["policy"] == policy]
        beats_per_s = BEATS * max(same_policy) if same_policy and max(same_policy) > 0 else None
        self._searches += 1
        plan = self._plan(workload, [row["goodput_per_s"] for row in best if row["goodput_per_s"] > 0])
        requests_at = self._requests_at(workload, plan)
        self._session.change_policy(policy)
        if workload not in self._warm:
            self._warm.add(workload)
            warm_up(self._session, plan, requests_at)
        found = search_rate(self._session, plan, requests_at, (self._options.model,), beats_per_s=beats_per_s)
        failing_per_s = found.failing_per_s or found.goodput_per_s
        return {
            "tbt_target": f"{plan.tbt_s} s",
            "goodput_per_s": found.goodput_per_s,
            "spread": failing_per_s - found.goodput_per_s,
            "bracketed": found.bracketed,
            "runs": found.runs,
        }

    def _plan(self, workload: str, attained_per_s: list[float]) -> RatePlan:
        first_per_s, least_requests = FIRST_GUESSES[workload]
        plan = rate_plan(self._options, first_per_s=first_per_s, least_requests=least_requests)
        if attained_per_s:
            return replace(plan, first_per_s=statistics.median(attained_per_s))
        return replace(plan, max_runs=plan.max_runs + MORE_RUNS)  # a guess may be far off

    def _requests_at(self, workload: str, plan: RatePlan) -> RequestsAt:
        shape = self._options.model
        longest_tokens = int(SHAPES[shape]["max_position_embeddings"]) - 64
        scaled = replace(WORKLOADS[workload], scale=self._options.scale)
        own_salts = self._searches * SALTS_OF_A_SEARCH  # no policy meets another's prompts in the prefix cache

        def requests_at(rate_per_s: float, salt: int) -> list[TimedRequest]:
            return make_requests(
                scaled,
                model=shape,
                rate_per_s=rate_per_s,
                count=plan.count(rate_per_s),
                seed=0,
                salt=own_salts + salt,
                slo_of=plan.slo_of,
                longest_tokens=longest_tokens,
            )

        return requests_at


def keys_of(workloads: Sequence[str], policies: Sequence[str], budget: int, *, is_first: bool) -> list[Row]:
    """All policies with the first budget; with the others chunked prefill alone."""
    chosen = policies if is_first else [policy for policy in policies if policy == "chunked_prefill"]
    return [
        {"workload": workload, "policy": policy, "chunk_budget_tokens": budget}
        for workload in workloads
        for policy in chosen
    ]


def measure_all(
    kept: KeptRows, options: argparse.Namespace, open_executor: Callable[[], TorchCudaExecutor], *, dtype: str
) -> None:
    workloads, policies = options.workload or ["sharegpt"], options.policy or DEFAULT_POLICIES
    budgets = options.budget or BUDGETS
    by_budget = {b: keys_of(workloads, policies, b, is_first=b == budgets[0]) for b in budgets}
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("goodput", total=sum(map(len, by_budget.values())))
        for budget, keys in by_budget.items():
            if any(kept.wants(**key) for key in keys):
                executor = open_executor()
                kept.note_gpu(executor.device, executor.chosen)
                kept.note({"model": options.model})
                session = open_session(executor, options.model, keys[0]["policy"], budget, dtype=dtype)
                searches = Searches(session, kept, options)
                for key in keys:
                    progress.update(task, description=" ".join(map(str, key.values())))
                    kept.attempt(key, lambda key=key, of=searches: of.measure(key["workload"], key["policy"]))
                    progress.advance(task)
                session.close()
                del session, searches, executor
                gc.collect()  # the engine's cycles hold the KV pool; the next one needs its memory
                torch.cuda.empty_cache()  # and that of streams that are gone


def best_rows(rows: Sequence[Row]) -> list[Row]:
    """Of the budgets of one policy and workload, the one with the highest goodput."""
    best: dict[tuple[object, object], Row] = {}
    for row in rows:
        key = row["workload"], row["policy"]
        if key not in best or row["goodput_per_s"] > best[key]["goodput_per_s"]:
            best[key] = row
    return list(best.values())


def draw(figure: Any, rows: Sequence[Row]) -> None:
    draw_bars(figure, best_rows(rows), group="workload", bar="policy", value="goodput_per_s", label="goodput, 1/s")


def arguments() -> argparse.ArgumentParser:
    parser = make_parser(__doc__, quick="short runs, fewer of them")
    parser.add_argument("--model", choices=sorted(SHAPES), default="llama-3-8b")
    parser.add_argument("--workload", action="append", choices=list(WORKLOADS), help="default: sharegpt")
    parser.add_argument("--policy", action="append", choices=sorted(POLICIES))
    parser.add_argument("--budget", action="append", type=int, help="tokens of a fused step (default: 1024, 512, 2048)")
    parser.add_argument("--scale", type=float, default=1.0, help="divides all lengths (default: 1)")
    parser.add_argument("--kv-gib", type=float, help="KV pool (default: 80, or what fits)")
    parser.add_argument("--eager", action="store_true", help="decode launch by launch")
    add_rate_arguments(parser, window_s=12.0, max_runs=6)
    return parser


def measure_on_gpu(options: argparse.Namespace, kept: KeptRows) -> None:
    if options.quick:
        options.window_s, options.max_runs = 6.0, 3

    def open_executor() -> TorchCudaExecutor:
        return open_cuda_executor(
            kv_pool_bytes=kv_pool_bytes(options.kv_gib),
            block_bytes=BLOCK_BYTES,
            captures=not options.eager,
            fuses=any(POLICIES[policy].fuses for policy in options.policy or DEFAULT_POLICIES),
            launch_limits=LaunchLimits(batch_tokens=MAX_BATCH_TOKENS, sequences=MAX_SEQUENCES),
        )

    measure_all(kept, options, open_executor, dtype="bfloat16")


def show(kept: KeptRows) -> None:
    columns = {"workload": "{workload}", "policy": "{policy}", "budget": "{chunk_budget_tokens}"}
    columns |= {"goodput 1/s": "{goodput_per_s:.2f}", "next that failed": "{failing_per_s:.2f}"}
    rows = best_rows(kept.rows)
    failing = [row["goodput_per_s"] + row["spread"] if row["bracketed"] else None for row in rows]
    print_table([{**row, "failing_per_s": rate} for row, rate in zip(rows, failing, strict=True)], columns)


def main() -> None:
    run_script(arguments(), ROW_KEY, measure_on_gpu, show, draw)


if __name__ == "__main__":
    main()
