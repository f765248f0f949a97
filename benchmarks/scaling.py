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
have two settings, and some as many nodes in reserve as ours or a shorter cooldown: at equal attainment the cheaper
counts. Which requests are late in a crowd is much by chance: `--draws N` is the mean of so many draws of each load.
"""

import json
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from planning.scaling_loads import LOADS, WEEK_S, squeezed, stream_of
from planning.scaling_rivals import RIVALS, Known
from report.command import make_parser, print_table, write_report
from report.machine_facts import machine_facts

from deploy.control.planner import Planner, PlannerInPlace
from deploy.fleet_file.settings import FleetFile, parse_fleet_file
from deploy.simulation.control import LoadTimes, MakePlanner
from deploy.simulation.deployments import Deployment, deploy_fleet
from deploy.simulation.engine import OnTokens
from deploy.simulation.event_queue import EventQueue
from deploy.simulation.runs import RunOptions, request_attainment_of, run_fleet
from deploy.simulation.streams import RequestStream
from deploy.simulation.units import SimulatedUnit
from placement.estimation.problem_arrays import Estimator
from placement.problem import Solver
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
MOST, COOLDOWN_S, SHORT_S, ORACLES_S = 6, 60.0, 30.0, 15.0
BETWEEN_SEEDS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaler:
    """`rival`: whose rule says how many nodes there shall be; ours where it is None."""

    least: int = 1
    most: int = MOST
    cooldown_s: float = COOLDOWN_S
    has_forecast: bool = False
    rival: str | None = None


_RESERVE, _SHORT = "2 nodes at least", f"{SHORT_S:g} s"
FIXED = {f"fixed {n}": Scaler(least=n, most=n) for n in range(1, MOST + 1)}
SCALERS: Mapping[str, Scaler] = {
    "ours": Scaler(),
    f"ours, {_RESERVE}": Scaler(least=2),
    f"ours, {_SHORT}": Scaler(cooldown_s=SHORT_S),
    "ours, forecast": Scaler(has_forecast=True),
    f"ours, forecast, {_SHORT}": Scaler(has_forecast=True, cooldown_s=SHORT_S),
    **{name: Scaler(rival=name, cooldown_s=ORACLES_S if name == "oracle" else COOLDOWN_S) for name in RIVALS},
    **{f"{name}, {_RESERVE}": Scaler(rival=name, least=2) for name in RIVALS if "HPA" not in name and name != "oracle"},
    **{
        f"Serve on requests, {n}, {_SHORT}": Scaler(rival=f"Serve on requests, {n}", cooldown_s=SHORT_S) for n in (1, 2)
    },
    f"oracle, {_RESERVE}": Scaler(rival="oracle", least=2, cooldown_s=ORACLES_S),
    f"oracle, {COOLDOWN_S:g} s": Scaler(rival="oracle"),
    **FIXED,
}
COLUMNS: Mapping[str, str] = {
    "load": "{load}",
    "scaler": "{scaler}",
    "GPU hours": "{gpu_hours:.2f}",
    "requests in time": "{in_time:.2%}",
    "lost": "{lost:.0f}",
    "nodes at most": "{most}",
    "nodes that came or went per hour": "{changes_per_hour:.0f}",
    "moves per hour": "{moves_per_hour:.0f}",
}


@dataclass(frozen=True, slots=True)
class Case:
    load: str
    scaler: str
    trace: Path | None
    draws: int

    def stream(self, draw: int) -> RequestStream:
        if self.load == "week" and self.trace is not None:
            return stream_of(self.load, squeezed(self.trace, WEEK_S))
        load = LOADS[self.load]
        return stream_of(self.load, load.arrivals(load.seed + draw * BETWEEN_SEEDS))

    def row(self) -> dict[str, Any]:
        """The mean of all draws; of nodes at most, and of attainment at least, the worst of them."""
        rows = [self.drawn(self.stream(draw)) for draw in range(self.draws)]
        means = {key: fmean(row[key] for row in rows) for key in rows[0]}
        least = min(row["in_time"] for row in rows)
        return {
            "load": self.load,
            "scaler": self.scaler,
            **means,
            "most": max(row["most"] for row in rows),
            "least_in_time": least,
            "draws": self.draws,
        }

    def drawn(self, stream: RequestStream) -> dict[str, float]:
        scaler, known = SCALERS[self.scaler], Known(stream)

        def planner(solver: Solver, estimator: Estimator) -> Planner:
            if scaler.rival is None:
                return PlannerInPlace(solver, estimator)
            return RIVALS[scaler.rival](solver, estimator, known)

        with TemporaryDirectory() as folder:
            forecast = LOADS[self.load].forecast(self.load, Path(folder)) if scaler.has_forecast else None
            return outcome_of(stream, fleet_of(scaler, forecast), known, planner)


def fleet_of(scaler: Scaler, forecast: str | None = None) -> FleetFile:
    scaling = SCALING.replace("COOLDOWN", f"{scaler.cooldown_s:g}")
    scaling = scaling.replace(" FORECAST", "" if forecast is None else f", forecast: {forecast}")
    text = FLEET.replace("LEAST", str(scaler.least)).replace("MOST", str(scaler.most))
    return parse_fleet_file(
        text.replace("SCALING", "" if scaler.least == scaler.most else scaling), name="breathing.yaml", base=EXAMPLES
    )


def outcome_of(stream: RequestStream, fleet: FleetFile, known: Known, make: MakePlanner) -> dict[str, float]:
    deployed = deploy_fleet(fleet, Deployment(name="mux", policy="mux"), loads=LoadTimes(), make_planner=make)

    def build(agenda: EventQueue, on_tokens: OnTokens) -> Sequence[SimulatedUnit]:
        known.agenda, known.units = agenda, deployed.build(agenda, on_tokens)
        return known.units

    options = RunOptions(limits=GatewayLimits(hold_s=30.0), gateways=1)
    outcome = run_fleet(replace(deployed, build=build), stream, options)
    use, total = outcome.node_use, outcome.total()
    hours = outcome.ended_s / 3600
    return {
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
        left_out = {name for name, scaler in SCALERS.items() if scaler.has_forecast and LOADS[load].season_s is None}
        if args.quick:
            left_out |= {name for name, scaler in FIXED.items() if scaler.least % 2}
        asked = [name for name in args.scaler or SCALERS if name not in left_out]
        yield from (Case(load, scaler, args.trace, args.draws) for scaler in asked)


def run(args: Namespace) -> None:
    rows: list[dict[str, Any]] = []
    if args.resume and args.json is not None and args.json.exists():
        rows = json.loads(args.json.read_text(encoding="utf-8"))["rows"]
        if others := {row["draws"] for row in rows} - {args.draws}:
            raise SystemExit(
                f"--resume: {args.json} has rows of --draws {others.pop()}; ask for as many, or name another"
            )
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
    parser.add_argument(
        "--scaler", action="append", choices=list(SCALERS), help="only its rows; may be given several times"
    )
    parser.add_argument("--trace", type=Path, help="requests in the place of BurstGPT's week")
    parser.add_argument("--draws", type=int, default=1, help="of each load, of which rows are the means")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--resume", action="store_true", help="keep what the file of --json has, run what is missing")
    options = parser.parse_args()
    if min(options.draws, options.jobs) < 1:
        parser.error("--draws and --jobs take 1 or more")
    run(options)
