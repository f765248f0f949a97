"""How fast a fleet is simulated, on one core or with --jobs on several, and how time and memory grow with it.

    python benchmarks/simulation.py [--quick] [--trace FILE] [--only NAME] [--jobs N] [--most-wall-s S] [--json FILE]

Every run is a process of its own, so that its memory is its own; with --jobs it divides the fleet among as many, and
all count. With MUXFLEET_COMPILED=1 in the environment it runs what `muxfleet compile` has compiled. The first rows are
examples/simulated-8gpu.yaml under a Mooncake trace (`--trace`, default:
../shared/traces/mooncake_conversation.parquet where it exists) and under its own demand, the next the same pools with
more nodes and as much more demand, the last examples/simulated-1000gpu.yaml.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import psutil
from report.command import make_parser, print_table, write_report
from report.machine_facts import machine_facts

from deploy.fleet_file.model_catalog import expected_demand
from deploy.fleet_file.settings import FleetFile, read_fleet_file
from deploy.simulation.deployments import Deployment, deploy_fleet
from deploy.simulation.divided_run import run_fleet_divided
from deploy.simulation.runs import RunOptions, run_fleet
from deploy.simulation.streams import RequestStream, demand_stream, trace_stream
from pdmux_actor.scheduling import scheduler
from router.limits import GatewayLimits

ROOT = Path(__file__).parents[1]
MOONCAKE = ROOT.parent / "shared" / "traces" / "mooncake_conversation.parquet"
OPTIONS = RunOptions(limits=GatewayLimits(), gateways=2)
ONE_RUN = """
import runpy, sys
from deploy.compilation.compiled_modules import prefer_compiled_modules

prefer_compiled_modules()
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def with_nodes(fleet: FleetFile, factor: int) -> FleetFile:
    pools = tuple(
        p.model_copy(update={"nodes": p.nodes.model_copy(update={"min": p.nodes.min * factor, "max": None})})
        for p in fleet.pools
    )
    models = tuple(
        m.model_copy(
            update={
                "replicas": m.replicas.model_copy(
                    update={"min": m.replicas.min * factor, "max": m.replicas.max * factor}
                ),
                "demand": m.demand.model_copy(update={"rate_per_s": m.demand.rate_per_s * factor}),
            }
        )
        for m in fleet.models
    )
    return fleet.model_copy(update={"pools": pools, "models": models})


def demand_of(fleet: FleetFile, duration_s: float) -> RequestStream:
    demands = [expected_demand(m) for m in fleet.models]
    return demand_stream(demands, duration_s=duration_s, seed=0)


def measure(
    name: str, file: str, factor: int, duration_s: float, trace: str | None, policy: str, most_wall_s: float, jobs: int
) -> dict[str, object]:
    """One run, in this process or in `jobs` below it. One that takes longer than `most_wall_s` ends there, with what
    has come by then; not one that is divided.
    """
    fleet = with_nodes(read_fleet_file(ROOT / "examples" / file), factor)
    started_s = time.process_time()
    deployed = deploy_fleet(fleet, Deployment(name=policy, policy=policy))
    planned_s = time.process_time() - started_s
    if trace is None:
        stream = demand_of(fleet, duration_s)
    else:
        weights = {m.id: m.demand.rate_per_s for m in fleet.models}
        whole = trace_stream(Path(trace), weights, seed=0, spread_ticks=True, rate_per_s=4.0)
        stream = replace(whole.first(None, duration_s), name="mooncake_conversation")
    growth = MemoryGrowth(stream.count)
    wall_started_s, started_s = time.monotonic(), cpu_time_s()
    if jobs > 1:
        outcome = run_fleet_divided(deployed, stream, OPTIONS, jobs=jobs, on_progress=growth.on_progress)
    else:
        outcome = run_fleet(
            deployed,
            stream,
            OPTIONS,
            give_up=lambda _: time.monotonic() - wall_started_s > most_wall_s,
            on_progress=growth.on_progress,
        )
    cpu_s, wall_s = cpu_time_s() - started_s, time.monotonic() - wall_started_s
    total = outcome.total().figures(outcome.duration_s)
    return {
        "run": name,
        "policy": policy,
        "jobs": jobs,
        "compiled": not str(scheduler.__file__).endswith(".py"),
        "gpus": deployed.num_gpus,
        "units": deployed.num_units,
        "models": len(fleet.models),
        "requests": total.requests,
        "finished": total.finished,
        "slo_attainment": total.slo_attainment,
        "request_attainment": total.request_attainment,
        "asked_s": duration_s,
        "gave_up": outcome.gave_up,
        "virtual_s": outcome.duration_s,
        "plan_s": planned_s,
        "cpu_s": cpu_s,
        "wall_s": wall_s,
        "times_real": outcome.duration_s / cpu_s,
        "requests_per_s": total.requests / cpu_s,
        "events_per_s": outcome.events / cpu_s,
        "steps_per_s": outcome.steps / cpu_s,
        "peak_memory_mib": max(growth.most_mib, memory_mib()),
        "memory_mib_by_tenth": growth.by_tenth_mib,
        "wall_s_by_tenth": growth.by_tenth_s,
    }


class MemoryGrowth:
    """Notes memory, and the time that has passed, as each tenth of the requests has ended."""

    def __init__(self, requests: int) -> None:
        self.by_tenth_mib: list[float] = []
        self.by_tenth_s: list[float] = []
        self.most_mib = 0.0
        self._requests = requests
        self._started_s = self._looked_s = time.monotonic()

    def on_progress(self, ended: int, now_s: float) -> None:
        seen_s = time.monotonic()
        is_tenth = ended >= self._requests * (len(self.by_tenth_mib) + 1) / 10
        if not is_tenth and seen_s < self._looked_s + 1.0:
            return
        self._looked_s, used_mib = seen_s, memory_mib()
        self.most_mib = max(self.most_mib, used_mib)
        if is_tenth:
            self.by_tenth_mib.append(round(used_mib))
            self.by_tenth_s.append(round(seen_s - self._started_s, 1))


def memory_mib() -> float:
    """Of this process and those below it: what they share counts once."""
    this = psutil.Process()
    pss_bytes = 0
    for process in (this, *this.children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # it has just ended
            pss_bytes += process.memory_full_info().pss
    return pss_bytes / 2**20


def cpu_time_s() -> float:
    """Of this process and of those below it that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def runs(quick: bool, trace: Path | None) -> list[tuple[str, str, int, float, str | None, str]]:
    short_s, long_s = (20.0, 60.0) if quick else (60.0, 600.0)
    small, large = "simulated-8gpu.yaml", "simulated-1000gpu.yaml"
    on_trace: list[tuple[str, str, int, float, str | None, str]] = []
    if trace is not None:
        on_trace = [
            ("8 GPUs, Mooncake at 4/s", small, 1, long_s / 2, str(trace), "mux"),
            ("8 GPUs, Mooncake at 4/s", small, 1, long_s / 2, str(trace), "chunked_prefill"),
            ("the same, 4x as long", small, 1, long_s * 2, str(trace), "mux"),
        ]
    return [
        *on_trace,
        *((f"8 GPUs x {factor}", small, factor, short_s, None, "mux") for factor in (1, 4, 16)),
        ("1,000 GPUs", large, 1, 10.0 if quick else 600.0, None, "mux"),
    ]


COLUMNS: Mapping[str, str] = {
    **{name: f"{{{name}}}" for name in ("run", "policy", "compiled", "jobs", "gpus", "units", "requests")},
    **{name: f"{{{name}:.0f}}" for name in ("virtual_s", "cpu_s", "wall_s", "times_real", "requests_per_s")},
    **{name: f"{{{name}:.0f}}" for name in ("events_per_s", "steps_per_s", "peak_memory_mib")},
}


def main() -> None:
    parser = make_parser(__doc__, quick="shorter runs")
    parser.add_argument("--trace", type=Path, default=MOONCAKE if MOONCAKE.exists() else None)
    parser.add_argument("--only", help="runs whose name contains this")
    parser.add_argument("--jobs", type=int, default=1, help="processes among which a run is divided")
    parser.add_argument("--most-wall-s", type=float, default=3600.0, help="longer runs end there")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(*json.loads(args.one))))
        return
    rows = []
    for run in runs(args.quick, args.trace):
        if args.only and args.only not in run[0]:
            continue
        print(f"{run[0]} ({run[-1]}) ...", file=sys.stderr)
        command = [
            sys.executable,
            "-c",
            ONE_RUN,
            str(Path(__file__).resolve()),
            "--one",
            json.dumps([*run, args.most_wall_s, args.jobs]),
        ]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    print_table(rows, COLUMNS)
    write_report(args.json, machine_facts(), rows)


if __name__ == "__main__":
    main()
