"""Goodput past capacity: requests per second whose first token and every gap are in time, against the load.

    python benchmarks/overload.py [--quick] [--json FILE] [--plot FILE]
    python benchmarks/overload.py --workload chat --policy mux --load 1 2 3 --seconds 60
    python benchmarks/overload.py --workload mixed --policy mux prefill_first --through gateway
    python benchmarks/overload.py --real [--steps benchmarks/results/step_times.json] [--quick] [--json FILE]

One unit in virtual time: the product's scheduler and policies, Llama 3.1 8B on an H200 by the roofline, 256 sequences.
`load` 1 is the workload's capacity: what `prefill_first` finishes per second when more waits than it can take, whatever
the targets. The token budget of chunked_prefill is tuned to the workload. `--through gateway` puts the router's
gateway before the unit (admission, queue, shedding), as `muxfleet simulate` does. Judged are the requests that arrive
in the last three quarters of `--seconds`; arrivals go on for two seconds more, and a run ends when every request is
known to be in time or not. Requests that are turned away are not in time.

Workloads (traces of ../shared/traces):

  chat              ShareGPT lengths, TTFT 1 s, TBT 50 ms
  chat-default-slo  the same at the default targets, 2 s and 200 ms
  mixed             chat with 5 % documents of 8k-32k tokens, which have 30 s for their first token
  mixed-one-target  the same documents at the chats' target of 1 s, which the longest cannot meet
  documents         chat with 1 % documents of 100k tokens, which have 30 s
  agents            Mooncake's mix of agents with shared prefixes (up to 32k tokens), TTFT 2 s, TBT 50 ms

`--real` runs the real engine on this machine's cores with a small model, as policies.py does. A gap has five solo
decode steps of eight sequences then, and `mixed` has 5 % prompts of 1,500 to 3,000 tokens. Decode is what is short
there, which it is not on the H200. With `--steps` the same in virtual time.

The last column is the goodput as a share of the best that the policy has at any load of the run.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.model_specs import LLAMA_3_8B
from fleets.overload_workloads import TRACES, WORKLOADS, OverloadWorkload, coming_requests
from fleets.virtual_fleet import Coming, Sent, VirtualFleet, unit_design
from load.request_times import shares_of, with_kept_shares
from report.command import make_parser, print_table, write_report
from report.machine_facts import machine_facts
from report.pictures import draw_overload, draw_picture
from rich.console import Console
from rich.progress import track

from deploy.simulation.engine import EngineDesign
from pdmux_actor.scheduling.policies.registry import POLICIES
from pdmux_actor.scheduling.settings import SchedulerSettings
from router.limits import GatewayLimits

MODEL = "llama-8b"
LOADS = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
QUICK_LOADS = (0.5, 1.0, 2.0)
MAX_MODEL_LEN = 131_072
MAX_RUNNING = 256
BLOCK_BYTES = 64 * 1024
KV_POOL_BYTES = 100 << 30  # of an H200's 141 GB, beside 16 GB of weights
UNIT, GATEWAY = "unit", "gateway"
_WARM_SHARE = 0.25  # of the arrivals, before the first that counts
_TAIL_S = 2.0  # of arrivals after the last that counts: it should not find an empty queue behind it
_FULL_S = (20.0, 60.0)  # when the reference is full, and until when its throughput is counted
_REFERENCE = "prefill_first"
REAL_POLICIES = ("mux", "chunked_prefill", "prefill_first")
_TUNED = "chunked_prefill"
BUDGETS_TOKENS = (2048, 1024, 512, 256, 128)
_TUNING_LOAD, _TUNING_S = 1.0, 20.0
Report = tuple[list[dict[str, Any]], Mapping[str, Any], Mapping[str, Any]]  # rows, machine, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    workload: OverloadWorkload
    through: str
    policy: str
    load: float


def design_of(policy: str, budget_tokens: int = BUDGETS_TOKENS[0]) -> EngineDesign:
    """`budget_tokens` is chunked prefill's."""
    return unit_design(
        {MODEL: LLAMA_3_8B},
        policy=policy,
        settings=SchedulerSettings(max_running_sequences=MAX_RUNNING, chunk_budget_tokens=budget_tokens),
        max_model_len=MAX_MODEL_LEN,
        total_blocks=KV_POOL_BYTES // BLOCK_BYTES,
        block_bytes=BLOCK_BYTES,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """How every point is run."""

    seconds: float
    seed: int
    traces: Path

    def capacity_per_s(self, workload: OverloadWorkload) -> float:
        """Requests that the reference finishes per second once it is full, when far more wait than it can take."""
        fleet = VirtualFleet(design_of(_REFERENCE), workload.slo)
        fleet.send(self._coming(workload, workload.flood_per_s, _FULL_S[1]))
        finished = []
        for end_s in _FULL_S:
            fleet.advance(end_s)
            finished.append(sum(sent.times.finish is not None for sent in fleet.sent.values()))
        return (finished[1] - finished[0]) / (_FULL_S[1] - _FULL_S[0])

    def tuned_budget_tokens(self, workload: OverloadWorkload, capacity_per_s: float) -> int:
        """With which chunked prefill has most requests in time at capacity; the largest of equals."""

        def in_time(budget_tokens: int) -> int:
            fleet = VirtualFleet(design_of(_TUNED, budget_tokens), workload.slo)
            fleet.send(self._coming(workload, _TUNING_LOAD * capacity_per_s, _TUNING_S))
            fleet.settle()
            return sum(sent.is_in_time for sent in fleet.sent.values())

        return max(BUDGETS_TOKENS, key=in_time)

    def row(self, point: Point, *, rate_per_s: float, budget_tokens: int) -> dict[str, Any]:
        workload = point.workload
        limits = GatewayLimits() if point.through == GATEWAY else None
        fleet = VirtualFleet(design_of(point.policy, budget_tokens), workload.slo, limits=limits)
        fleet.send(self._coming(workload, rate_per_s, self.seconds + _TAIL_S))
        fleet.settle()
        from_s = _WARM_SHARE * self.seconds
        judged = [sent for sent in fleet.sent.values() if from_s <= sent.coming.at_s < self.seconds]
        return {
            "workload": workload.name,
            "through": point.through,
            "policy": point.policy,
            "load": point.load,
            "rate_per_s": round(rate_per_s, 3),
            "requests": len(judged),
            "goodput_per_s": round(sum(sent.is_in_time for sent in judged) / (self.seconds - from_s), 3),
            **_figures(judged),
            "kinds": {kind: _figures([s for s in judged if s.coming.kind == kind]) for kind in workload.kinds()},
        }

    def _coming(self, workload: OverloadWorkload, rate_per_s: float, duration_s: float) -> list[Coming]:
        return coming_requests(
            workload, model=MODEL, rate_per_s=rate_per_s, duration_s=duration_s, seed=self.seed, traces=self.traces
        )


def _figures(judged: Sequence[Sent]) -> dict[str, Any]:
    return shares_of([sent.times for sent in judged], turned_away=sum(sent.refused for sent in judged))


COLUMNS: Mapping[str, str] = {
    **{name: f"{{{name}}}" for name in ("workload", "through", "policy", "load")},
    "requests/s": "{rate_per_s:.2f}",
    "in time/s": "{goodput_per_s:.2f}",
    "in time": "{request_attainment:.1%}",
    "first tokens": "{ttft_attainment:.1%}",
    "second tokens": "{second_token_attainment:.1%}",
    "gaps": "{tbt_attainment:.1%}",
    "TTFT p50": "{ttft_p50_s:.2f} s",
    "kept": "{kept:.0%}",
}


def virtual_rows(args: argparse.Namespace) -> Report:
    names = args.workload or (("chat", "mixed", "agents") if args.quick else list(WORKLOADS))
    bench = Bench(seconds=args.seconds or (30.0 if args.quick else 60.0), seed=args.seed, traces=args.traces)
    capacities: dict[str, float] = {}
    budgets: dict[str, int] = {}
    points = [
        Point(workload=WORKLOADS[name], through=through, policy=policy, load=load)
        for name in names
        for through in args.through
        for policy in args.policy or list(POLICIES)
        for load in args.load or (QUICK_LOADS if args.quick else LOADS)
    ]
    rows = []
    for point in track(points, console=Console(stderr=True), transient=True):
        workload, name = point.workload, point.workload.name
        if name not in capacities:
            capacities[name] = args.capacity or bench.capacity_per_s(workload)
        if point.policy == _TUNED and name not in budgets:
            budgets[name] = bench.tuned_budget_tokens(workload, capacities[name])
        rate_per_s, budget_tokens = point.load * capacities[name], budgets.get(name, BUDGETS_TOKENS[0])
        rows.append(bench.row(point, rate_per_s=rate_per_s, budget_tokens=budget_tokens))
    setting = {
        "engine": f"Llama 3.1 8B on an H200 by the roofline, {MAX_RUNNING} sequences",
        "seconds_per_point": bench.seconds,
        "chunk_budget_tokens": budgets,
        "capacity_per_s": {name: round(capacity, 3) for name, capacity in capacities.items()},
    }
    return rows, machine_facts(time="virtual"), setting


def real_rows(args: argparse.Namespace) -> Report:
    from engines.engine_environment import in_engine_environment
    from engines.llama_checkpoint import DEFAULT_CACHE  # these need torch, which virtual time does without
    from search.overload_real import REAL_WORKLOADS, TBT_STEPS, measured_real_bench

    in_engine_environment()
    names = args.workload or (("chat",) if args.quick else list(REAL_WORKLOADS))
    if unknown := [name for name in names if name not in REAL_WORKLOADS]:
        raise SystemExit(f"--real has no workload {unknown[0]}: use {', '.join(REAL_WORKLOADS)}")
    seconds = args.seconds or (8.0 if args.quick else 15.0)
    bench = measured_real_bench(
        names,
        cache=args.cache or DEFAULT_CACHE,
        seconds=seconds,
        seed=args.seed,
        tbt_steps=args.tbt_steps or TBT_STEPS,
        steps_file=args.steps,
    )
    capacities = {name: args.capacity or bench.capacity_per_s(name) for name in names}
    points = [
        (name, policy, load)
        for name in names
        for load in args.load or (QUICK_LOADS if args.quick else LOADS)
        for policy in args.policy or (REAL_POLICIES if args.quick else list(POLICIES))  # they take turns
    ]
    rows = [
        bench.row(name, policy, load, load * capacities[name])
        for name, policy, load in track(points, console=Console(stderr=True), transient=True)
    ]
    setting = {
        "seconds_per_point": seconds,
        "capacity_per_s": {name: round(capacity, 3) for name, capacity in capacities.items()},
        "targets_s": {name: {"ttft": round(slo.ttft_s, 4), "tbt": round(slo.tbt_s, 4)} for name, slo in bench.slos()},
    }
    return rows, bench.machine.facts(), setting


def main() -> None:
    parser = make_parser(__doc__, quick="fewer workloads and loads, shorter runs")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw goodput against load; one panel per workload")
    parser.add_argument("--workload", nargs="+", choices=list(WORKLOADS), metavar="NAME", help=", ".join(WORKLOADS))
    parser.add_argument("--policy", nargs="+", choices=list(POLICIES), metavar="NAME", help=", ".join(POLICIES))
    parser.add_argument("--load", nargs="+", type=float, metavar="X", help="in capacities; default 0.5 to 3")
    parser.add_argument("--through", nargs="+", choices=(UNIT, GATEWAY), default=(UNIT,), help="default unit")
    parser.add_argument("--real", action="store_true", help="on this machine's cores; chat, mixed and agents")
    parser.add_argument("--seconds", type=float, metavar="S", help="of arrivals; default 60, --real 15")
    parser.add_argument("--capacity", type=float, metavar="PER_S", help="requests per second, instead of measuring it")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--traces", type=Path, default=TRACES, metavar="FOLDER")
    parser.add_argument("--steps", type=Path, metavar="FILE", help="with --real: virtual time from these step times")
    parser.add_argument("--tbt-steps", type=float, metavar="X", help="of --real: solo steps in a gap; default 5")
    parser.add_argument("--cache", type=Path, metavar="FOLDER", help="of --real: keeps the checkpoint")
    args = parser.parse_args()
    if min(args.load or LOADS) <= 0 or (args.seconds or 1) <= 0 or min(args.capacity or 1, args.tbt_steps or 1) <= 0:
        parser.error("--load, --seconds, --capacity and --tbt-steps take numbers above 0")
    if (args.steps or args.tbt_steps) and not args.real:
        parser.error("--steps and --tbt-steps are for --real: virtual time without it has its own device and targets")
    if args.real and GATEWAY in args.through:
        parser.error("--through gateway is for virtual time: leave out --real")
    found, machine, setting = real_rows(args) if args.real else virtual_rows(args)
    rows = with_kept_shares(found)
    time = "real engine" if args.real and not args.steps else "virtual time"
    print_table(rows, COLUMNS, title=f"goodput past capacity, {time}")
    write_report(args.json, machine, rows, **setting)
    if args.plot:
        draw_picture(args.plot, rows, draw_overload)


if __name__ == "__main__":
    main()
