"""What pools that follow demand save, against fixed sizes and other scalers, in virtual time.

    python benchmarks/scaling.py [--load NAME ...] [--scaler NAME ...] [--trace FILE] [--quick] [--jobs N] [--json FILE]

Two 8B models on A40s, 1 to 6 nodes of one GPU; a node comes 20 s after it was asked for and is paid from then on.
Loads: `crowd`, a jump to five times the rate for four minutes; `day`, a day's sine in half an hour; `servegen`,
a day of ServeGen's chat models in 25 minutes; `week`, the hours of five of BurstGPT's days and two quiet ones in 56;
the last two where ../shared/traces has them. A forecast is told of the day before: of `day` another draw of the same
sine, which is more than a fleet knows; of `servegen` the one before in its windows; on `week` it learns as it goes.
`--trace` takes a file of requests, as that of the Azure 2024 week, in the place of `week`.
All requests have 4000 and 4 tokens. Rivals replace the planner's answer; moves, victims, looks (every 5 s), cooldown
(60 s, the oracle's 15 s) and bounds are the product's. Plans are memory_greedy's, so that a run takes minutes. Most
have two settings: at equal attainment the cheaper counts.
"""

import json
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from planning.scaling_loads import LOADS, WEEK_S, squeezed, stream_of
from planning.scaling_rivals import RIVALS, Known
from report.command import make_parser, print_table, write_report
from report.machine_facts import machine_facts

from deploy.control.planner import PlannerInPlace
from deploy.fleet_file.settings import FleetFile, parse_fleet_file
from deploy.simulation.control import LoadTimes, MakePlanner
from deploy.simulation.deployments import Deployment, deploy_fleet
from deploy.simulation.engine import OnTokens
from deploy.simulation.event_queue import EventQueue
from deploy.simulation.runs import RunOptions, request_attainment_of, run_fleet
from deploy.simulation.streams import RequestStream
from deploy.simulation.units import SimulatedUnit
from router.limits import GatewayLimits

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"

FLEET = """
name: breathing
models:
  - {id: a, source: ./models/llama-3.1-8b, max_model_len: 8192, slo: {ttft_s: 4.0, tbt_s: 0.25},
     replicas: {min: 1, max: 6}, demand: {rate_per_s: 0.35, prompt_tokens: 4000, output_tokens: 4}}
  - {id: b, source: ./models/llama-3.1-8b, max_model_len: 8192, slo: {ttft_s: 4.0, tbt_s: 0.25},
     replicas: {min: 1, max: 6}, demand: {rate_per_s: 0.15, prompt_tokens: 4000, output_tokens: 4}}
pools:
  - {name: p, device: simulated, gpu_type: A40, kv_memory: 6GiB, device_memory: 44GiB,
     nodes: {min: LEAST, max: MOST} SCALING}
placement: {solver: memory_greedy, replan_every_s: 5}
"""
SCALING = ", scaling: {cooldown_s: COOLDOWN, provision_s: 20 FORECAST}"
MOST, COOLDOWN_S = 6, 60.0
FORECAST = "ours, forecast"
OURS = {"ours": 1, "ours, 2 nodes at least": 2, FORECAST: 1}
"""Nodes at least."""
SCALERS = [*OURS, *RIVALS, *(f"fixed {n}" for n in range(1, MOST + 1))]
COLUMNS: Mapping[str, str] = {
    "load": "{load}",
    "scaler": "{scaler}",
    "GPU hours": "{gpu_hours:.2f}",
    "requests in time": "{in_time:.2%}",
    "lost": "{lost}",
    "nodes at most": "{most}",
    "nodes that came or went per hour": "{changes_per_hour:.0f}",
    "moves per hour": "{moves_per_hour:.0f}",
}


@dataclass(frozen=True, slots=True)
class Case:
    load: str
    scaler: str
    trace: Path | None

    def stream(self) -> RequestStream:
        if self.load == "week" and self.trace is not None:
            return stream_of(self.load, squeezed(self.trace, WEEK_S))
        return stream_of(self.load, LOADS[self.load].arrivals())

    def row(self) -> dict[str, Any]:
        stream = self.stream()
        known = Known(stream)
        if self.scaler.startswith("fixed"):
            nodes = int(self.scaler.split()[1])
            return row_of(stream, self.scaler, fleet_of(nodes, nodes), known, PlannerInPlace)
        cooldown_s = 15.0 if self.scaler == "oracle" else COOLDOWN_S
        if self.scaler in OURS:
            with TemporaryDirectory() as folder:
                forecast = LOADS[self.load].forecast(self.load, Path(folder)) if self.scaler == FORECAST else None
                fleet = fleet_of(OURS[self.scaler], MOST, forecast=forecast)
                return row_of(stream, self.scaler, fleet, known, PlannerInPlace)
        fleet = fleet_of(1, MOST, cooldown_s=cooldown_s)
        make = RIVALS[self.scaler]
        return row_of(stream, self.scaler, fleet, known, lambda solver, estimator: make(solver, estimator, known))


def fleet_of(least: int, most: int, *, cooldown_s: float = COOLDOWN_S, forecast: str | None = None) -> FleetFile:
    scaling = SCALING.replace("COOLDOWN", f"{cooldown_s:g}")
    scaling = scaling.replace(" FORECAST", "" if forecast is None else f", forecast: {forecast}")
    text = FLEET.replace("LEAST", str(least)).replace("MOST", str(most))
    return parse_fleet_file(
        text.replace("SCALING", "" if least == most else scaling), name="breathing.yaml", base=EXAMPLES
    )


def row_of(stream: RequestStream, name: str, fleet: FleetFile, known: Known, make: MakePlanner) -> dict[str, Any]:
    deployed = deploy_fleet(fleet, Deployment(name="mux", policy="mux"), loads=LoadTimes(), make_planner=make)

    def build(agenda: EventQueue, on_tokens: OnTokens) -> Sequence[SimulatedUnit]:
        known.agenda, known.units = agenda, deployed.build(agenda, on_tokens)
        return known.units

    options = RunOptions(limits=GatewayLimits(hold_s=30.0), gateways=1)
    outcome = run_fleet(replace(deployed, build=build), stream, options)
    use, total = outcome.node_use, outcome.total()
    hours = outcome.ended_s / 3600
    return {
        "load": stream.name,
        "scaler": name,
        "gpu_hours": len(known.units) * hours if use is None else use.gpu_hours,
        "in_time": request_attainment_of(outcome),
        "lost": total.requests - total.finished,
        "most": len(known.units) if use is None else use.most,
        "changes_per_hour": 0.0 if use is None else use.changes / hours,
        "moves_per_hour": sum(len(d.moves) for d in outcome.decisions) / hours,
        "requests": total.requests,
    }


def cases(args: Namespace) -> Iterator[Case]:
    for load in args.load or (["crowd"] if args.quick else list(LOADS)):
        needed = LOADS[load].needs
        if needed is not None and not needed.exists() and not (load == "week" and args.trace):
            print(f"{load}: there is no {needed}; left out")
            continue
        fixed = [f"fixed {n}" for n in range(2 if args.quick else 1, MOST + 1, 2 if args.quick else 1)]
        ours = [name for name in OURS if name != FORECAST or LOADS[load].season_s is not None]
        named = [*ours, *RIVALS, *fixed]
        yield from (Case(load, scaler, args.trace) for scaler in args.scaler or named if scaler in named)


def run(args: Namespace) -> None:
    rows: list[dict[str, Any]] = []
    if args.resume and args.json is not None and args.json.exists():
        rows = json.loads(args.json.read_text(encoding="utf-8"))["rows"]
    done = {(row["load"], row["scaler"]) for row in rows}
    left = [case for case in cases(args) if (case.load, case.scaler) not in done]
    with ProcessPoolExecutor(args.jobs) as workers:
        for row in workers.map(Case.row, left):
            rows.append(row)
            print(row, flush=True)
            write_report(args.json, machine_facts(time="virtual"), rows)
    print_table(rows, COLUMNS, title="Nodes that follow demand, in virtual time")


if __name__ == "__main__":
    parser = make_parser(__doc__, quick="the flash crowd alone, fewer fixed sizes")
    parser.add_argument("--load", action="append", choices=list(LOADS), help="may be given several times")
    parser.add_argument("--scaler", action="append", choices=SCALERS, help="only its rows; may be given several times")
    parser.add_argument("--trace", type=Path, help="requests in the place of BurstGPT's week")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--resume", action="store_true", help="keep what the file of --json has, run what is missing")
    run(parser.parse_args())
