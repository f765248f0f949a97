"""What policies serve in time where launches take uneven times, as on a machine that others use too. Virtual time.

    python benchmarks/uneven_steps.py [--workload NAME ...] [--policy NAME ...] [--contention X] [--json FILE] [--quick]

Step times are those of step_times.json, each times a lognormal factor (`sigma`), and one in 200 two and a half times as
long besides (`stalls`). Beside prefill decode takes 1.3 times as long, or `--contention`. A policy is asked for rising
rates by one engine: what a stall teaches it is with it from then on. Draws are the same in every run.
"""

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from engines.llama_checkpoint import DEFAULT_CACHE, llama_checkpoint
from engines.machine import Machine, measured_machine
from engines.served_steps import ServedSteps
from load.workloads import WORKLOADS, Workload, make_requests
from report.command import make_parser, print_table, write_report
from rich.progress import track
from search.targets import Target, targets_of

from pdmux_actor.scheduling.policies.registry import POLICIES
from pdmux_actor.scheduling.settings import SchedulerSettings

STEPS = Path(__file__).parent / "results" / "step_times.json"
DEFAULT_POLICIES = ("mux", "muxwise", "static_split", "chunked_prefill")
UNEVEN: Mapping[str, tuple[float, float]] = {"even": (0.0, 0.0), "10 %": (0.1, 0.0), "10 % and stalls": (0.1, 0.005)}
SHARES_OF_BEARABLE = (0.2, 0.4, 0.6)  # of what one core each would bear
_MODEL, _LAYERS = "llama", 16
_DRAWS, _STALL, _CONTENTION, _HOST_S = 4000, 2.5, 1.3, 0.0005
COLUMNS: Mapping[str, str] = {
    "workload": "{workload}",
    "steps": "{steps}",
    "policy": "{policy}",
    "requests/s": "{rate_per_s:.1f}",
    "requests in time": "{requests_in_time:.1%}",
    "gaps in time": "{gaps_in_time:.2%}",
    "first tokens in time": "{first_tokens_in_time:.1%}",
}


def uneven(sigma: float, stalls: float, contention: float) -> ServedSteps:
    draw = np.random.default_rng(3)
    factors = draw.lognormal(0.0, sigma, _DRAWS) * np.where(draw.random(_DRAWS) < stalls, _STALL, 1.0)
    seen: tuple[float, ...] = tuple(factors.tolist())
    ratios: Mapping[tuple[str, int | None], tuple[float, ...]] = {
        (phase, None): seen for phase in ("prefill", "decode", "mixed")
    }
    return ServedSteps(ratios=ratios, prefill_slowdown=1.15, decode_slowdown=contention, host_s=_HOST_S)


def rows_of(
    machine: Machine,
    checkpoint: Path,
    workload: Workload,
    target: Target,
    steps: str,
    policy: str,
    seeds: int,
    contention: float,
) -> Iterator[dict[str, Any]]:
    settings = SchedulerSettings(chunk_budget_tokens=target.budget_tokens)
    session = machine.session({_MODEL: checkpoint}, policy, settings, served=uneven(*UNEVEN[steps], contention))
    for number, share in enumerate(SHARES_OF_BEARABLE):
        rate_per_s = share * target.bearable_per_s(workload)
        outcomes = [
            session.run(
                make_requests(
                    workload,
                    model=_MODEL,
                    rate_per_s=rate_per_s,
                    count=max(24, int(30 * rate_per_s)),
                    seed=seed,
                    salt=number * seeds + seed,
                    slo_of=target.slo_of,
                )
            )
            for seed in range(seeds)
        ]
        yield {
            "workload": workload.name,
            "steps": steps,
            "policy": policy,
            "rate_per_s": rate_per_s,
            "requests_in_time": mean(outcome.request_attainment for outcome in outcomes),
            "gaps_in_time": mean(outcome.gap_attainment for outcome in outcomes),
            "first_tokens_in_time": mean(outcome.ttft_attainment for outcome in outcomes),
        }
    session.close()


def run(args: Namespace) -> None:
    workloads: Sequence[str] = args.workload or (["sharegpt"] if args.quick else list(WORKLOADS))
    seeds = 1 if args.quick else 4
    checkpoint = llama_checkpoint(DEFAULT_CACHE, num_layers=_LAYERS)
    rows: list[dict[str, Any]] = []
    with measured_machine(checkpoint, virtual=True, steps_file=STEPS) as machine:
        cases = [(w, s, p) for w in workloads for s in UNEVEN for p in args.policy or DEFAULT_POLICIES]
        for name, steps, policy in track(cases, "serving", transient=True):
            workload = WORKLOADS[name]
            (target,) = targets_of(machine, workload, ["tight"], machine.prefill_s_per_token)
            rows += rows_of(machine, checkpoint, workload, target, steps, policy, seeds, args.contention)
        print_table(rows, COLUMNS, title="Served in time where steps are uneven, in virtual time")
        write_report(args.json, machine.facts(), rows, contention=args.contention)


if __name__ == "__main__":
    parser = make_parser(__doc__, quick="one workload, one draw")
    parser.add_argument("--workload", action="append", choices=list(WORKLOADS), help="may be given several times")
    parser.add_argument("--policy", action="append", choices=sorted(POLICIES), help="may be given several times")
    parser.add_argument(
        "--contention", type=float, default=_CONTENTION, metavar="X", help=f"of decode beside prefill; {_CONTENTION}"
    )
    run(parser.parse_args())
