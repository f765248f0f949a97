"""What it is worth that plans count on what models lose to their neighbours, in virtual time.

Four models that are asked alike share two simulated A40s in pairs, and it does not matter to the estimate which. On
this device the launches of one pair take `interference` times as long while one of the other's runs, which no latency
model knows of. The control loop leads the fleet, with `placement.part_neighbours` and without. At 1 nobody hurts
anybody: then nothing should move.

    python benchmarks/neighbours.py --json benchmarks/results/neighbours.json
"""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from fleets.byte_checkpoint import write_checkpoint
from report.command import make_parser, print_table, write_report
from report.machine_facts import machine_facts

from deploy.fleet_file.settings import FleetFile, parse_fleet_file
from deploy.planning.fleet_planning import plan_fleet
from deploy.simulation.control import LoadTimes
from deploy.simulation.deployments import Deployment, deploy_fleet
from deploy.simulation.fleet_outcome import FleetOutcome
from deploy.simulation.runs import RunOptions, run_fleet
from deploy.simulation.streams import RequestStream
from deploy.simulation.virtual_world import Interference
from router.limits import GatewayLimits
from traces.outcome import RequestOutcome
from traces.record import TraceRecord
from traces.report import summarize
from traces.timeliness import SloTarget

MODELS = ("a", "b", "c", "d")
SLO = SloTarget(ttft_s=2.0, tbt_s=0.2)
RATE_PER_S, PROMPT_TOKENS, OUTPUT_TOKENS = 1.0, 700, 20
_LAYERS_7B = (32, 4096, 11008, 32, 8, 128)
_LEARNED_S = 60.0  # until then the fleet finds out


def fleet_file(folder: Path, *, part_neighbours: bool) -> FleetFile:
    write_checkpoint(folder / "checkpoint", _LAYERS_7B)
    demand = {"rate_per_s": RATE_PER_S, "prompt_tokens": PROMPT_TOKENS, "output_tokens": OUTPUT_TOKENS}
    settings = {
        "name": "neighbours",
        "models": [
            {
                "id": model,
                "source": "./checkpoint",
                "slo": {"ttft_s": SLO.ttft_s, "tbt_s": SLO.tbt_s},
                "demand": demand,
                "replicas": {"min": 1, "max": 1},
            }
            for model in MODELS
        ],
        "pools": [
            {"name": "a40", "device": "simulated", "gpu_type": "A40", "gpus_per_node": 2, "kv_memory": "8GiB"},
        ],
        "placement": {"min_residency_s": 20.0, "max_moves_per_min": 30, "part_neighbours": part_neighbours},
    }
    return parse_fleet_file(yaml.safe_dump(settings), name="neighbours.yaml", base=folder)


def requests(seed: int, span_s: float) -> list[TraceRecord]:
    draw = np.random.default_rng(seed)
    records = []
    for model in MODELS:
        count = draw.poisson(RATE_PER_S * span_s)
        prompts = np.clip(draw.lognormal(np.log(PROMPT_TOKENS) - 0.18, 0.6, count), 8, 3 * PROMPT_TOKENS)
        outputs = np.clip(draw.geometric(1 / OUTPUT_TOKENS, count), 2, 8 * OUTPUT_TOKENS)
        records += [
            TraceRecord(arrival_s=float(at_s), input_tokens=int(i), output_tokens=int(o), model=model)
            for at_s, i, o in zip(draw.random(count) * span_s, prompts, outputs, strict=True)
        ]
    return sorted(records, key=lambda r: r.arrival_s)


def run(fleet: FleetFile, records: list[TraceRecord], factor: float) -> tuple[FleetOutcome, list[RequestOutcome]]:
    """Of the plan that the fleet starts with, the first unit's models hurt each other."""
    one, other = (p.model for p in plan_fleet(fleet).plan.units[0].models)
    interference: Interference = {(one, other): factor, (other, one): factor} if factor != 1 else {}
    deployment = Deployment(name="mux", policy=fleet.engine.policy, interference=interference)
    outcomes: list[RequestOutcome] = []
    stream = RequestStream(
        name="neighbours",
        records=lambda: iter(records),
        block_tokens=None,
        count=len(records),
        span_s=records[-1].arrival_s,
    )
    options = RunOptions(limits=GatewayLimits(hold_s=60.0), gateways=2)
    deployed = deploy_fleet(fleet, deployment, loads=LoadTimes())
    return run_fleet(deployed, stream, options, on_outcome=outcomes.append), outcomes


def rows_of(factor: float, seed: int, span_s: float) -> Iterator[dict[str, Any]]:
    records = requests(seed, span_s)
    for parts in (False, True):
        with tempfile.TemporaryDirectory(prefix="neighbours-") as folder:
            fleet = fleet_file(Path(folder), part_neighbours=parts)
            outcome, outcomes = run(fleet, records, factor)
        moves = [move for decision in outcome.decisions for move in decision.moves]
        row: dict[str, Any] = {"interference": factor, "seed": seed, "part_neighbours": parts}
        for name, since_s in (("all", 0.0), ("afterwards", _LEARNED_S)):
            summary = summarize([o for o in outcomes if o.scheduled_s >= since_s], dict.fromkeys(MODELS, SLO))
            row[f"{name}_in_time"] = summary.total.request_attainment
            row[f"{name}_worst"] = min(f.request_attainment or 0.0 for f in summary.models.values())
            row[f"{name}_requests"] = summary.total.requests
            row[f"{name}_lost"] = summary.total.lost + summary.total.failed
        yield row | {"loads": sum(move.startswith(("load ", "wake ")) for move in moves)}


COLUMNS: Mapping[str, str] = {
    "interference": "{interference:g}",
    "seed": "{seed}",
    "parts": "{part_neighbours}",
    "requests": "{all_requests}",
    "in time": "{all_in_time:.1%}",
    "after a minute": "{afterwards_in_time:.1%}",
    "worst model": "{afterwards_worst:.1%}",
    "lost": "{all_lost}",
    "loads": "{loads}",
}


def main() -> None:
    parser = make_parser(__doc__, quick="two minutes, one seed")
    options = parser.parse_args()
    seeds, span_s = ((1,), 120.0) if options.quick else ((1, 2, 3), 300.0)
    rows: list[dict[str, Any]] = []
    for factor in (1.0, 2.0, 3.0):
        for seed in seeds:
            rows += rows_of(factor, seed, span_s)
            write_report(options.json, machine_facts(), rows)
    print_table(rows, COLUMNS)


if __name__ == "__main__":
    main()
