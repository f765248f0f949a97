"""Goodput of the dispatch policies on this GPU: same engine, same arrivals, TBT target 50 ms.

    python benchmarks/gpu/goodput.py [--model llama-3-8b] [--workload sharegpt ...] [--policy mux ...] [--json FILE]

Workloads are those of benchmarks/policies.py at full length (MuxWise Table 1). chunked_prefill is run with several
token budgets and its best one counts, as if it had been tuned offline. A rate passes when 99 % of the gaps and 95 % of
the first tokens are in time; a first token is due after --ttft-s plus --ttft-s-per-kilotoken for its prompt.
"""

import argparse
import gc
import sys
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engine_run import EngineSession
from goodput import Attainment, RateSearch
from gpu.random_models import SHAPES, random_model
from machine_facts import machine_facts, write_report
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from workloads import WORKLOADS, make_requests

from pdmux_actor.errors import DeviceUnavailable
from pdmux_actor.executor.torch_cuda import open_cuda_executor
from pdmux_actor.messages import Slo
from pdmux_actor.models.triton_operators import TritonOperators
from pdmux_actor.scheduling.policies.registry import POLICIES
from pdmux_actor.scheduling.settings import SchedulerSettings

BLOCK_BYTES = 16 * 1024
BUDGETS = (512, 1024, 2048)
MAX_BATCH_TOKENS = 8192
MAX_SEQUENCES = 256


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


def open_session(options: argparse.Namespace, variant: Variant) -> EngineSession:
    executor = open_cuda_executor(kv_pool_bytes=int(options.kv_gib * (1 << 30)), block_bytes=BLOCK_BYTES)
    loaded = random_model(
        options.model, device=executor.torch_device, block_bytes=BLOCK_BYTES, operators=TritonOperators()
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


def search_goodput(session: EngineSession, options: argparse.Namespace, workload_name: str) -> RateSearch:
    workload = replace(WORKLOADS[workload_name], scale=1)
    attainment = Attainment()

    def slo_of(prompt_tokens: int) -> Slo:
        return Slo(ttft_s=options.ttft_s + options.ttft_s_per_kilotoken * prompt_tokens / 1e3, tbt_s=options.tbt_s)

    search = RateSearch(first_per_s=options.first_per_s, resolution=0.1, max_runs=options.max_runs)
    while not search.done:
        rate_per_s = search.next_rate_per_s()
        requests = make_requests(
            workload,
            model=options.model,
            rate_per_s=rate_per_s,
            count=max(32, int(options.window_s * rate_per_s)),
            seed=0,
            salt=search.runs,
            slo_of=slo_of,
        )
        outcome = session.run(requests, give_up=attainment.out_of_reach)
        search.note(rate_per_s, passed=attainment.met_by(outcome))
    return search


def best_rows(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Of the budgets of one policy and workload, the one with the highest goodput."""
    best: dict[tuple[object, object], dict[str, object]] = {}
    for row in rows:
        key = row["workload"], row["policy"]
        if key not in best or float(str(row["goodput_per_s"])) > float(str(best[key]["goodput_per_s"])):
            best[key] = row
    return list(best.values())


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(SHAPES), default="llama-3-8b")
    parser.add_argument("--workload", action="append", choices=list(WORKLOADS))
    parser.add_argument("--policy", action="append", choices=sorted(POLICIES))
    parser.add_argument("--tbt-s", type=float, default=0.05)
    parser.add_argument("--ttft-s", type=float, default=0.5)
    parser.add_argument("--ttft-s-per-kilotoken", type=float, default=0.25)
    parser.add_argument("--kv-gib", type=float, default=80.0)
    parser.add_argument("--window-s", type=float, default=20.0)
    parser.add_argument("--first-per-s", type=float, default=4.0)
    parser.add_argument("--max-runs", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="short runs, fewer of them")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser


def main() -> None:
    options = arguments().parse_args()
    if options.quick:
        options.window_s, options.max_runs = 8.0, 5
    policies = tuple(options.policy or ("mux", "muxwise", "duetserve", "chunked_prefill", "prefill_first"))
    workloads = options.workload or ["sharegpt", "loogle", "conversation"]
    rows: list[dict[str, object]] = []
    device = None
    with Progress(console=Console(stderr=True)) as progress:
        chosen = variants(policies)
        task = progress.add_task("goodput", total=len(chosen) * len(workloads))
        for variant in chosen:
            try:
                session = open_session(options, variant)
            except DeviceUnavailable as error:
                sys.exit(str(error))
            device = session.device
            for workload in workloads:
                progress.update(task, description=f"{workload} {variant.policy} {variant.budget_tokens}")
                found = search_goodput(session, options, workload)
                failing_per_s = found.failing_per_s or found.goodput_per_s
                rows.append(
                    {
                        "workload": workload,
                        "tbt_target": f"{options.tbt_s} s",
                        "policy": variant.policy,
                        "chunk_budget_tokens": variant.budget_tokens,
                        "goodput_per_s": found.goodput_per_s,
                        "spread": failing_per_s - found.goodput_per_s,
                    }
                )
                progress.advance(task)
            session.close()
            gc.collect()  # the engine's cycles hold the KV pool; the next policy needs its memory
    best = best_rows(rows)
    table = Table("workload", "policy", "goodput 1/s", "next that failed")
    for row in best:
        failing = float(str(row["goodput_per_s"])) + float(str(row["spread"]))
        table.add_row(str(row["workload"]), str(row["policy"]), f"{row['goodput_per_s']:.2f}", f"{failing:.2f}")
    Console().print(table)
    if options.json and device is not None:
        write_report(options.json, {**machine_facts(device), "model": options.model}, rows)


if __name__ == "__main__":
    main()
