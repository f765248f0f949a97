"""Two and three models in one unit: which policy and which quotas serve them best.

    python benchmarks/shared_unit.py [--quick] [--json FILE]

Models of about 50 M parameters share cores and KV pool; requests are ShareGPT-shaped with popularity 8:1 (8:1:1) and
1:1 (1:1:1). The pool is small, so that quotas matter, and starts divided equally. Variants take turns at one and the
same load, near what the unit bears: `mux` and `adbs` with adaptive quotas and borrowing; `mux` with fixed quotas;
`prefill_first` (FCFS per model) and `temporal`, both with adaptive quotas. Reported are medians over rounds: output
tokens/s, the worst model's share of requests within their targets, and use of the pool over time (in the JSON).
"""

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench_models import DEFAULT_CACHE, llama_checkpoint
from engine_run import EngineSession, RunOutcome, TimedRequest
from machine_facts import machine_facts, write_report
from rich.console import Console
from rich.progress import track
from rich.table import Table
from solo_steps import SoloSteps
from workloads import WORKLOADS, make_requests

from pdmux_actor.messages import Slo
from pdmux_actor.scheduling.settings import SchedulerSettings

ADAPTIVE = SchedulerSettings(adapt_quotas=True, quota_period_s=1.0, chunk_budget_tokens=32)
FIXED = replace(ADAPTIVE, adapt_quotas=False, kv_lendable_share=0.0)
VARIANTS = (
    ("mux, adaptive quotas", "mux", ADAPTIVE),
    ("mux, fixed quotas", "mux", FIXED),
    ("adbs, adaptive quotas", "adbs", ADAPTIVE),
    ("adbs, fixed quotas", "adbs", FIXED),
    ("prefill_first", "prefill_first", ADAPTIVE),
    ("temporal", "temporal", ADAPTIVE),
)
_LAYERS = 8
_POOL_BYTES = 24 << 20
_BATCH = 4
_REPORT_PERIOD_S = 0.25  # of the engine loop
_TBT_STEPS = 2.0  # per model: a target of two solo steps of each model in turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    name: str
    shares: Mapping[str, float]


def scenarios(*, quick: bool) -> list[Scenario]:
    two = [
        Scenario(name="2 models 8:1", shares={"a": 8, "b": 1}),
        Scenario(name="2 models 1:1", shares={"a": 1, "b": 1}),
    ]
    three = [
        Scenario(name="3 models 8:1:1", shares={"a": 8, "b": 1, "c": 1}),
        Scenario(name="3 models 1:1:1", shares={"a": 1, "b": 1, "c": 1}),
    ]
    return two[:1] if quick else two + three


def shared_requests(
    scenario: Scenario, *, rate_per_s: float, window_s: float, salt: int, slo: Slo
) -> list[TimedRequest]:
    total = sum(scenario.shares.values())
    timed: list[TimedRequest] = []
    for number, (model, share) in enumerate(scenario.shares.items()):
        model_rate_per_s = rate_per_s * share / total
        count = max(2, round(model_rate_per_s * window_s))
        timed += make_requests(
            WORKLOADS["sharegpt"],
            model=model,
            rate_per_s=model_rate_per_s,
            count=count,
            seed=number,
            salt=salt,
            slo_of=lambda prompt_tokens: slo,
        )
    return sorted(timed, key=lambda request: request.at_s)


def measure(
    scenario: Scenario, checkpoints: Mapping[str, Path], solo: SoloSteps, *, window_s: float, rounds: int
) -> list[dict[str, object]]:
    context = WORKLOADS["sharegpt"].mean_context_tokens
    step_s = solo.decode_s(_BATCH, context, solo.device.num_sms)
    num_models = len(scenario.shares)
    slo = Slo(ttft_s=30 * step_s, tbt_s=_TBT_STEPS * num_models * step_s)
    # What the decode lane alone bears with the typical batch of each model; prefill runs beside it.
    rate_per_s = 0.7 * _BATCH / (step_s * WORKLOADS["sharegpt"].mean_output_tokens)
    sessions = {
        label: EngineSession(
            checkpoints={model: checkpoints[model] for model in scenario.shares},
            policy=policy,
            settings=settings,
            device=solo.device,
            kv_pool_bytes=_POOL_BYTES,
        )
        for label, policy, settings in VARIANTS
    }
    outcomes: dict[str, list[RunOutcome]] = {label: [] for label in sessions}
    salt = 0
    try:
        for turn in range(1 + rounds):
            for label, session in sessions.items():
                salt += 1
                span_s = window_s if turn else window_s / 3
                requests = shared_requests(scenario, rate_per_s=rate_per_s, window_s=span_s, salt=salt, slo=slo)
                outcome = session.run(requests)
                if turn:  # the first one warms the predictions
                    outcomes[label].append(outcome)
    finally:
        for session in sessions.values():
            session.close()
    return [_row(scenario, label, found, rate_per_s, slo) for label, found in outcomes.items()]


def _row(
    scenario: Scenario, label: str, outcomes: Sequence[RunOutcome], rate_per_s: float, slo: Slo
) -> dict[str, object]:
    throughputs = [outcome.output_tokens_per_s for outcome in outcomes]
    worst = [min(o.of_model(model).request_attainment for model in scenario.shares) for o in outcomes]
    last = outcomes[-1]
    return {
        "scenario": scenario.name,
        "variant": label,
        "rate_per_s": rate_per_s,
        "tbt_target_s": slo.tbt_s,
        "ttft_target_s": slo.ttft_s,
        "output_tokens_per_s": statistics.median(throughputs),
        "output_tokens_per_s_spread": max(throughputs) - min(throughputs),
        "worst_model_attainment": statistics.median(worst),
        "worst_model_attainment_spread": max(worst) - min(worst),
        "preemptions": sum(load.preemptions_total for load in last.reports[-1].models) if last.reports else 0,
        "mean_fairness_gap": statistics.mean(r.fairness_gap for r in last.reports) if last.reports else None,
        "other_cores": statistics.mean(outcome.other_cores for outcome in outcomes),
        "pool_use": [
            {
                "at_s": round(i * _REPORT_PERIOD_S, 2),
                **{load.model: [load.used_blocks, load.quota_blocks] for load in report.models},
            }
            for i, report in enumerate(last.reports)
        ],
    }


def print_table(rows: Sequence[Mapping[str, object]]) -> None:
    table = Table(
        "scenario", "variant", "output tokens/s", "±", "worst model", "±", "fairness gap", title="shared unit"
    )
    for row in rows:
        gap = row["mean_fairness_gap"]
        table.add_row(
            str(row["scenario"]),
            str(row["variant"]),
            f"{row['output_tokens_per_s']:.0f}",
            f"{row['output_tokens_per_s_spread']:.0f}",
            f"{row['worst_model_attainment']:.0%}",
            f"{row['worst_model_attainment_spread']:.0%}",
            "-" if gap is None else f"{gap:.2f}",
        )
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write rows and machine facts as JSON")
    parser.add_argument("--quick", action="store_true", help="two models at 8:1 only, shorter runs")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, metavar="FOLDER", help="keeps the checkpoints")
    args = parser.parse_args()
    checkpoints = {
        model: llama_checkpoint(args.cache, num_layers=_LAYERS, seed=number) for number, model in enumerate("abc")
    }
    solo = SoloSteps(checkpoints["a"])
    rows: list[dict[str, object]] = []
    for scenario in track(scenarios(quick=args.quick), console=Console(stderr=True), transient=True):
        rows += measure(
            scenario, checkpoints, solo, window_s=6.0 if args.quick else 20.0, rounds=1 if args.quick else 3
        )
    solo.close()
    print_table(rows)
    if args.json:
        write_report(args.json, machine_facts(solo.device), rows)


if __name__ == "__main__":
    main()
