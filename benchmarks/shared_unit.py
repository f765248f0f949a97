"""Two and three models in one unit: which policy and which quotas serve them best.

    python benchmarks/shared_unit.py [--quick] [--json FILE] [--plot FILE] [--virtual [--steps FILE]]
    python benchmarks/shared_unit.py --scenario "2 models 8:1" --rounds 2 [--window-s 20]

Models of about 50 M parameters share cores and KV pool; requests are ShareGPT-shaped (without its longest ones) with
popularity 8:1 (8:1:1) and 1:1 (1:1:1). The pool holds a few hundred tokens per model and starts divided equally, so
that quotas matter. Variants take turns at one and the same load, near what the unit bears: `mux` and `adbs` with
adaptive quotas and borrowing, and with fixed quotas; `prefill_first` (FCFS per model) and `temporal`, both adaptive
too. Reported are medians over rounds: output tokens/s, the worst model's share of requests in time (first token and
every gap; beside it with 99 % of the gaps), and use of the pool over time (in the JSON; `--plot` draws it).
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engines.engine_environment import in_engine_environment
from engines.engine_session import RunOutcome
from engines.llama_checkpoint import DEFAULT_CACHE, llama_checkpoint
from engines.machine import Machine, measured_machine
from load.request_times import TimedRequest
from load.workloads import WORKLOADS, Lengths, make_requests
from report.command import make_parser, print_table, write_report
from report.pictures import draw_picture, draw_pool_use
from rich.console import Console
from rich.progress import track

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
# At most 100 + 150 tokens a request.
WORKLOAD = replace(WORKLOADS["sharegpt"], new_input=Lengths(226, 4, 400, 0.9), output=Lengths(195, 4, 600, 0.9))
_MAX_MODEL_LEN = 256  # each model's floor: a quota never falls below its longest sequence
_LAYERS = 8
_TOKENS_PER_MODEL = 448  # of the pool, on average
_KV_BYTES_PER_TOKEN = _LAYERS * 4 * 2 * 64 * 2  # layers, KV heads, K and V, head size, bfloat16
_BATCH = 4
_REPORT_PERIOD_S = 0.25  # of the engine loop
_KEPT_REPORTS = 4
_LOAD = 0.8
_TBT_STEPS = 2.0  # per model: a target of two solo steps of each model in turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    name: str
    shares: Mapping[str, float]


SCENARIOS = (
    Scenario(name="2 models 8:1", shares={"a": 8, "b": 1}),
    Scenario(name="2 models 1:1", shares={"a": 1, "b": 1}),
    Scenario(name="3 models 8:1:1", shares={"a": 8, "b": 1, "c": 1}),
    Scenario(name="3 models 1:1:1", shares={"a": 1, "b": 1, "c": 1}),
)


def shared_requests(
    scenario: Scenario, *, rate_per_s: float, window_s: float, seed: int, salt: int, slo: Slo
) -> list[TimedRequest]:
    total = sum(scenario.shares.values())
    timed: list[TimedRequest] = []
    for number, (model, share) in enumerate(scenario.shares.items()):
        model_rate_per_s = rate_per_s * share / total
        count = max(2, round(model_rate_per_s * window_s))
        timed += make_requests(
            WORKLOAD,
            model=model,
            rate_per_s=model_rate_per_s,
            count=count,
            seed=10 * seed + number,
            salt=salt,
            slo_of=lambda prompt_tokens: slo,
        )
    return sorted(timed, key=lambda request: request.at_s)


def measure(
    scenario: Scenario,
    machine: Machine,
    checkpoints: Mapping[str, Path],
    step_s: float,
    *,
    window_s: float,
    rounds: int,
) -> list[dict[str, object]]:
    """`step_s` is the solo decode step of a typical batch on all cores."""
    models = list(scenario.shares)
    slo = Slo(ttft_s=30 * step_s, tbt_s=_TBT_STEPS * len(models) * step_s)
    # A share of what the decode lane alone bears with the typical batch of each model; prefill runs beside it.
    rate_per_s = _LOAD * _BATCH / (step_s * WORKLOAD.mean_output_tokens)
    own, pool_bytes = {m: checkpoints[m] for m in models}, _TOKENS_PER_MODEL * len(models) * _KV_BYTES_PER_TOKEN
    sessions = {
        label: machine.session(own, policy, settings, kv_pool_bytes=pool_bytes, max_model_len=_MAX_MODEL_LEN)
        for label, policy, settings in VARIANTS
    }
    outcomes: dict[str, list[RunOutcome]] = {label: [] for label in sessions}
    salt = 0
    try:
        for turn in range(1 + rounds):
            for label, session in sessions.items():
                salt += 1
                span_s = window_s if turn else window_s / 3
                requests = shared_requests(
                    scenario, rate_per_s=rate_per_s, window_s=span_s, seed=turn, salt=salt, slo=slo
                )
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
    worst = [min(o.of_model(model).slo_attainment for model in scenario.shares) for o in outcomes]
    worst_in_time = [min(o.of_model(model).request_attainment for model in scenario.shares) for o in outcomes]
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
        "request_attainment": statistics.median(o.request_attainment for o in outcomes),
        "worst_model_request_attainment": statistics.median(worst_in_time),
        "worst_model_request_attainment_spread": max(worst_in_time) - min(worst_in_time),
        "preemptions": sum(load.preemptions_total for load in last.reports[-1].models) if last.reports else 0,
        "mean_fairness_gap": statistics.mean(r.fairness_gap for r in last.reports) if last.reports else None,
        "other_cores": statistics.mean(outcome.other_cores for outcome in outcomes),
        "pool_use": [
            {
                "at_s": round(i * _REPORT_PERIOD_S, 2),
                **{load.model: [load.used_blocks, load.quota_blocks] for load in report.models},
            }
            for i, report in enumerate(last.reports)
            if i % _KEPT_REPORTS == 0
        ],
    }


COLUMNS: Mapping[str, str] = {
    "scenario": "{scenario}",
    "variant": "{variant}",
    "output tokens/s": "{output_tokens_per_s:.0f}",
    "±": "{output_tokens_per_s_spread:.0f}",
    "worst model in time": "{worst_model_request_attainment:.0%}",
    "± ": "{worst_model_request_attainment_spread:.0%}",
    "99 % of gaps": "{worst_model_attainment:.0%}",
    "fairness gap": "{mean_fairness_gap:.2f}",
}


def main() -> None:
    parser = make_parser(__doc__, quick="two models at 8:1 only, shorter runs")
    parser.add_argument(
        "--scenario", action="append", choices=[s.name for s in SCENARIOS], help="may be given several times"
    )
    parser.add_argument("--rounds", type=int, choices=range(1, 101), metavar="N", help="of each scenario; default 3")
    parser.add_argument("--window-s", type=float, metavar="S", help="arrivals of a round; default 20, virtual 60")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw each model's blocks and quota over time")
    parser.add_argument("--virtual", action="store_true", help="virtual time from measured step times")
    parser.add_argument(
        "--steps", type=Path, metavar="FILE", help="with --virtual: read the step times, or measure and keep them"
    )
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, metavar="FOLDER", help="keeps the checkpoints")
    args = parser.parse_args()
    if not args.virtual:
        in_engine_environment()
    checkpoints = {
        model: llama_checkpoint(args.cache, num_layers=_LAYERS, seed=number) for number, model in enumerate("abc")
    }
    with measured_machine(checkpoints["a"], virtual=args.virtual, steps_file=args.steps) as machine:
        step_s = machine.times.step_s(_BATCH, WORKLOAD.mean_context_tokens)
    names = args.scenario or [s.name for s in SCENARIOS[: 1 if args.quick else None]]
    rounds = args.rounds or (1 if args.quick and not args.virtual else 3)
    window_s = args.window_s or (60.0 if args.virtual else 6.0 if args.quick else 20.0)
    rows: list[dict[str, object]] = []
    chosen = [scenario for scenario in SCENARIOS if scenario.name in names]
    for scenario in track(chosen, console=Console(stderr=True), transient=True):
        rows += measure(scenario, machine, checkpoints, step_s, window_s=window_s, rounds=rounds)
    print_table(rows, COLUMNS, title="shared unit")
    write_report(args.json, machine.facts(), rows)
    if args.plot:
        draw_picture(args.plot, rows, draw_pool_use)


if __name__ == "__main__":
    main()
