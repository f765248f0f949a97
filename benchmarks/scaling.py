"""What pools that follow demand save, against fixed sizes and other scalers, in virtual time.

    python benchmarks/scaling.py [--load NAME ...] [--quick] [--json FILE]

Two 8B models on A40s, 1 to 6 nodes of one GPU; a node comes 20 s after it was asked for and is paid from then on.
Loads: `day`, a day's sine in half an hour; `crowd`, a jump to five times the rate for four minutes; `servegen`, the
arrivals of 16 h of ServeGen's day in 20 minutes, thinned, where ../shared/traces has it. All requests have 4000 and 4
tokens. Rivals replace the planner's answer; moves, victims, cooldown (60 s, the oracle's 15 s) and bounds are the
product's. Plans are memory_greedy's, so that a run takes minutes.
"""

import json
import math
from argparse import Namespace
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from planning.scaling_rivals import MetricScaler, Oracle, PredictiveScaler
from report.command import make_parser, print_table, write_report
from report.machine_facts import machine_facts

from deploy.control.planner import Planner, PlannerInPlace
from deploy.fleet_file.settings import FleetFile, parse_fleet_file
from deploy.simulation.control import LoadTimes, MakePlanner
from deploy.simulation.deployments import Deployment, deploy_fleet
from deploy.simulation.event_queue import EventQueue
from deploy.simulation.runs import RunOptions, request_attainment_of, run_fleet
from deploy.simulation.streams import RequestStream
from deploy.simulation.units import SimulatedUnit
from placement.estimation.problem_arrays import Estimator
from placement.problem import Solver
from router.limits import GatewayLimits
from traces.readers.entry import read_trace
from traces.record import TraceRecord

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SERVEGEN = Path(__file__).resolve().parents[2] / "shared" / "traces" / "servegen_multimodel_day0.parquet"

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
placement: {solver: memory_greedy}
"""
SCALING = ", scaling: {cooldown_s: COOLDOWN, provision_s: 20}"
MOST, AHEAD_S, COOLDOWN_S = 6, 45.0, 60.0
SHARE_OF_A = 0.7
COLUMNS: Mapping[str, str] = {
    "load": "{load}",
    "scaler": "{scaler}",
    "GPU hours": "{gpu_hours:.2f}",
    "requests in time": "{in_time:.2%}",
    "lost": "{lost}",
    "nodes at most": "{most}",
    "changes of nodes": "{changes}",
    "loads and drains": "{moves}",
}

Intensity = Callable[[float], float]


def day_per_s(at_s: float) -> float:
    return 2.25 - 1.75 * math.cos(2 * math.pi * at_s / 1800)


def crowd_per_s(at_s: float) -> float:
    return 3.75 if 300 <= at_s < 540 else 0.75


def arrivals(intensity: Intensity, span_s: float, most_per_s: float, seed: int) -> list[float]:
    """A Poisson process by thinning."""
    draw = np.random.default_rng(seed)
    times_s = np.cumsum(draw.exponential(1 / most_per_s, int(span_s * most_per_s * 1.2)))
    kept = draw.random(len(times_s)) * most_per_s < np.array([intensity(float(t)) for t in times_s])
    return [float(t) for t in times_s[kept] if t < span_s]


def servegen() -> list[float]:
    trace = read_trace(SERVEGEN)
    ordered = [r.arrival_s / 48 for r in trace.records]
    return ordered[::40]


def stream_of(name: str, times_s: Sequence[float]) -> RequestStream:
    draw = np.random.default_rng(7)
    models = np.where(draw.random(len(times_s)) < SHARE_OF_A, "a", "b")
    records = [
        TraceRecord(arrival_s=t, input_tokens=4000, output_tokens=4, model=str(m))
        for t, m in zip(times_s, models, strict=True)
    ]
    return RequestStream(
        name=name, records=lambda: iter(records), block_tokens=None, count=len(records), span_s=times_s[-1]
    )


def fleet_of(least: int, most: int, cooldown_s: float) -> FleetFile:
    scaling = "" if least == most else SCALING.replace("COOLDOWN", f"{cooldown_s:g}")
    text = FLEET.replace("LEAST", str(least)).replace("MOST", str(most)).replace("SCALING", scaling)
    return parse_fleet_file(text, name="breathing.yaml", base=EXAMPLES)


class Known:
    """What rivals may look at: the clock, the units, and the arrivals that only the oracle knows."""

    def __init__(self, stream: RequestStream) -> None:
        self.agenda: EventQueue | None = None
        self.units: Sequence[SimulatedUnit] = ()
        self._counts: defaultdict[str, Counter[int]] = defaultdict(Counter)
        for record in stream.records():
            self._counts[str(record.model)][int(record.arrival_s // 30)] += 1

    def now(self) -> float:
        assert self.agenda is not None, "units are built first"
        return self.agenda.clock.now_s

    def rates(self, from_s: float, to_s: float) -> Mapping[str, float]:
        spans = range(int(from_s // 30), int(to_s // 30) + 1)
        return {m: max(counts[i] for i in spans) / 30 for m, counts in self._counts.items()}


def scalers(known: Known) -> Mapping[str, MakePlanner]:
    def metric(solver: Solver, estimator: Estimator) -> Planner:
        return MetricScaler(solver, estimator, known.units)

    def predictive(solver: Solver, estimator: Estimator) -> Planner:
        return PredictiveScaler(solver, estimator, known.now)

    def oracle(solver: Solver, estimator: Estimator) -> Planner:
        return Oracle(solver, estimator, known.now, known.rates, AHEAD_S)

    return {"ours": PlannerInPlace, "metric": metric, "predictive": predictive, "oracle": oracle}


def row_of(stream: RequestStream, name: str, fleet: FleetFile, known: Known, make: MakePlanner) -> dict[str, Any]:
    deployed = deploy_fleet(fleet, Deployment(name="mux", policy="mux"), loads=LoadTimes(), make_planner=make)

    def build(agenda: EventQueue, on_tokens: Any) -> Sequence[SimulatedUnit]:  # noqa: ANN401  as of the simulator
        known.agenda, known.units = agenda, deployed.build(agenda, on_tokens)
        return known.units

    options = RunOptions(limits=GatewayLimits(hold_s=30.0), gateways=1)
    outcome = run_fleet(replace(deployed, build=build), stream, options)
    use, total = outcome.node_use, outcome.total()
    fixed_hours = len(known.units) * outcome.ended_s / 3600
    return {
        "load": stream.name,
        "scaler": name,
        "gpu_hours": fixed_hours if use is None else use.gpu_hours,
        "in_time": request_attainment_of(outcome),
        "lost": total.requests - total.finished,
        "most": len(known.units) if use is None else use.most,
        "changes": 0 if use is None else use.changes,
        "moves": sum(len(d.moves) for d in outcome.decisions),
    }


def loads(names: Sequence[str]) -> Iterator[RequestStream]:
    if "day" in names:
        yield stream_of("day", arrivals(day_per_s, 1800, 4.0, 1))
    if "crowd" in names:
        yield stream_of("crowd", arrivals(crowd_per_s, 900, 3.75, 2))
    if "servegen" in names and SERVEGEN.exists():
        yield stream_of("servegen", servegen())


def run(args: Namespace) -> None:
    rows: list[dict[str, Any]] = []
    if args.resume and args.json is not None and args.json.exists():
        rows = json.loads(args.json.read_text(encoding="utf-8"))["rows"]
    for stream in loads(args.load or (["crowd"] if args.quick else ["day", "crowd", "servegen"])):
        known = Known(stream)
        sizes = range(3, MOST + 1, 2 if args.quick else 1)
        fixed = {f"fixed {n}": (fleet_of(n, n, 0), PlannerInPlace) for n in sizes}
        led = {n: (fleet_of(1, MOST, 15.0 if n == "oracle" else COOLDOWN_S), m) for n, m in scalers(known).items()}
        for name, (fleet, make) in {**fixed, **led}.items():
            if any((row["load"], row["scaler"]) == (stream.name, name) for row in rows):
                continue
            rows.append(row_of(stream, name, fleet, known, make))
            print(rows[-1], flush=True)
            write_report(args.json, machine_facts(time="virtual"), rows)
    print_table(rows, COLUMNS, title="Nodes that follow demand, in virtual time")


if __name__ == "__main__":
    parser = make_parser(__doc__, quick="the flash crowd alone, fewer fixed sizes")
    parser.add_argument(
        "--load", action="append", choices=["day", "crowd", "servegen"], help="may be given several times"
    )
    parser.add_argument("--resume", action="store_true", help="keep what the file of --json has, run what is missing")
    run(parser.parse_args())
