"""Goodput past capacity: requests per second whose first token and every gap are in time, against the load.

    python benchmarks/overload.py [--quick] [--json FILE] [--plot FILE]
    python benchmarks/overload.py --workload chat --policy mux --load 1 2 3 --seconds 60
    python benchmarks/overload.py --workload mixed --policy mux prefill_first --through gateway

One unit in virtual time: the product's scheduler and policies, Llama 3.1 8B on an H200 by the roofline, 256 sequences.
`load` 1 is the workload's capacity: what `prefill_first` finishes per second when more waits than it can take, whatever
the targets. The token budget of chunked_prefill is tuned to the workload. `--through gateway` puts the router's front
desk before the unit (admission, fair queue, shedding), as `muxfleet simulate` does. Judged are the requests that arrive
in the last three quarters of `--seconds`; arrivals go on for two seconds more, and a run ends when every request is
known to be in time or not. Requests that are turned away are not in time.

Workloads (traces of ../shared/traces):

  chat              ShareGPT lengths, TTFT 1 s, TBT 50 ms
  chat-default-slo  the same at the default targets, 2 s and 200 ms
  mixed             chat with 5 % documents of 8k-32k tokens, which have 30 s for their first token
  mixed-one-target  the same documents at the chats' target of 1 s, which the longest cannot meet
  documents         chat with 1 % documents of 100k tokens, which have 30 s
  agents            Mooncake's mix of agents with shared prefixes (up to 32k tokens), TTFT 2 s, TBT 50 ms

The last column is the goodput as a share of the best that the policy has at any load of the run.
"""

import argparse
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overload_plot import draw_overload
from overload_workloads import TRACES, WORKLOADS, OverloadWorkload, coming_requests
from rich.console import Console
from rich.progress import track
from rich.table import Table
from virtual_fleet import Coming, Sent, VirtualFleet, h200_design

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
_TUNED = "chunked_prefill"
BUDGETS_TOKENS = (2048, 1024, 512, 256, 128)
_TUNING_LOAD, _TUNING_S = 1.0, 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    workload: OverloadWorkload
    through: str
    policy: str
    load: float


def design_of(policy: str, budget_tokens: int = BUDGETS_TOKENS[0]) -> EngineDesign:
    """`budget_tokens` is chunked prefill's."""
    return h200_design(
        policy=policy,
        settings=SchedulerSettings(max_running_sequences=MAX_RUNNING, chunk_budget_tokens=budget_tokens),
        models=(MODEL,),
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
            **_shares(judged),
            "kinds": {kind: _shares([s for s in judged if s.coming.kind == kind]) for kind in workload.kinds()},
        }

    def _coming(self, workload: OverloadWorkload, rate_per_s: float, duration_s: float) -> list[Coming]:
        return coming_requests(
            workload, model=MODEL, rate_per_s=rate_per_s, duration_s=duration_s, seed=self.seed, traces=self.traces
        )


def _shares(judged: Sequence[Sent]) -> dict[str, Any]:
    """None where there is nothing to judge. A gap that was not waited for is not counted."""
    firsts_s = [sent.times.ttft_s for sent in judged]
    gaps = sum(len(sent.times.gaps_s) for sent in judged)
    return {
        "request_attainment": _share(sum(sent.is_in_time for sent in judged), len(judged)),
        "ttft_attainment": _share(
            sum(first_s <= sent.coming.slo.ttft_s for first_s, sent in zip(firsts_s, judged, strict=True)), len(judged)
        ),
        "second_token_attainment": _share(
            sum(gap_s[0] <= sent.coming.slo.tbt_s for sent in judged if (gap_s := sent.times.gaps_s)),
            sum(len(sent.times.token_times_s) > 1 for sent in judged),
        ),
        "tbt_attainment": _share(sum(sent.times.gaps_within for sent in judged), gaps),
        "turned_away": _share(sum(sent.refused for sent in judged), len(judged)),
        "ttft_p50_s": _finite(statistics.median(firsts_s)) if firsts_s else None,
    }


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def _finite(seconds: float) -> float | None:
    return round(seconds, 4) if math.isfinite(seconds) else None


def with_kept_shares(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """`kept`: the goodput as a share of the policy's best at any load."""
    best: dict[tuple[str, str, str], float] = {}
    for row in rows:
        best[_curve(row)] = max(best.get(_curve(row), 0.0), row["goodput_per_s"])
    return [row | {"kept": _share(row["goodput_per_s"], best[_curve(row)])} for row in rows]


def _curve(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return row["workload"], row["through"], row["policy"]


def print_table(rows: Sequence[Mapping[str, Any]], title: str) -> None:
    table = Table(
        *("workload", "through", "policy", "load", "requests/s", "in time/s", "in time", "first tokens"),
        *("second tokens", "gaps", "TTFT p50", "kept"),
        title=title,
    )
    for row in rows:
        shares = (row[key] for key in ("request_attainment", "ttft_attainment", "second_token_attainment"))
        table.add_row(
            *(str(row[key]) for key in ("workload", "through", "policy", "load")),
            f"{row['rate_per_s']:.2f}",
            f"{row['goodput_per_s']:.2f}",
            *("-" if share is None else f"{share:.1%}" for share in (*shares, row["tbt_attainment"])),
            "-" if row["ttft_p50_s"] is None else f"{row['ttft_p50_s']:.2f} s",
            "-" if row["kept"] is None else f"{row['kept']:.0%}",
        )
    Console(width=140).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write rows and machine facts as JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw goodput against load; one panel per workload")
    parser.add_argument("--quick", action="store_true", help="three workloads, three loads, 30 s of arrivals each")
    parser.add_argument("--workload", nargs="+", choices=list(WORKLOADS), metavar="NAME", help=", ".join(WORKLOADS))
    parser.add_argument("--policy", nargs="+", choices=list(POLICIES), metavar="NAME", help=", ".join(POLICIES))
    parser.add_argument("--load", nargs="+", type=float, metavar="X", help="in capacities; default 0.5 to 3")
    parser.add_argument("--through", nargs="+", choices=(UNIT, GATEWAY), default=(UNIT,), help="default unit")
    parser.add_argument("--seconds", type=float, metavar="S", help="of arrivals; default 60")
    parser.add_argument("--capacity", type=float, metavar="PER_S", help="requests per second, instead of measuring it")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--traces", type=Path, default=TRACES, metavar="FOLDER")
    args = parser.parse_args()
    names = args.workload or (("chat", "mixed", "agents") if args.quick else list(WORKLOADS))
    loads = args.load or (QUICK_LOADS if args.quick else LOADS)
    if min(loads) <= 0 or (args.seconds or 1) <= 0:
        parser.error("--load and --seconds take numbers above 0")
    bench = Bench(seconds=args.seconds or (30.0 if args.quick else 60.0), seed=args.seed, traces=args.traces)
    capacities: dict[str, float] = {}
    budgets: dict[str, int] = {}
    points = [
        Point(workload=WORKLOADS[name], through=through, policy=policy, load=load)
        for name in names
        for through in args.through
        for policy in args.policy or list(POLICIES)
        for load in loads
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
    rows = with_kept_shares(rows)
    print_table(rows, "goodput past capacity, virtual time")
    if args.json:
        facts = {
            "time": "virtual",
            "engine": f"Llama 3.1 8B on an H200 by the roofline, {MAX_RUNNING} sequences",
            "seconds_per_point": bench.seconds,
            "chunk_budget_tokens": budgets,
            "capacity_per_s": {name: round(capacity, 3) for name, capacity in capacities.items()},
        }
        args.json.write_text(json.dumps({**facts, "rows": rows}, indent=2) + "\n", encoding="utf-8")
    if args.plot:
        draw_overload(args.plot, rows)


if __name__ == "__main__":
    main()
