"""How long the controller takes to answer heartbeats of a large fleet while a plan for it is computed.

    python benchmarks/controller_heartbeats.py [--units 512] [--models 300] [--seconds 30] [--json FILE] [--quick]

Units of two GPUs, models of 7B, and the demand of one of them jumps now and then. All but the planner is in this
process, as in the product, without Ray's own calls. One row for all heartbeats and one for those that came while a plan
was asked for and not there. `cpu` are milliseconds of the controller's thread: on a machine that has other work, the
others count how long the thread waits for a core.
"""

import asyncio
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from fleets.told_reports import demand_report, report_of, write_config
from report.command import make_parser, print_table, write_report
from report.machine_facts import machine_facts

from deploy.control.planner import PlanAnswer, Planner, PlanTask
from deploy.planning.planner_process import PlannerProcess
from deploy.serve.controller import Controller
from pdmux_actor.lease import Lease

_REQUESTS_PER_S = 8.0
_BEAT_S = 0.5


@dataclass(slots=True, eq=False)
class WatchedPlanner:
    """Implements Planner by another one."""

    planner: Planner
    is_planning: bool = False

    def ask(self, task: PlanTask) -> None:
        self.planner.ask(task)
        self.is_planning = True

    def answer(self) -> PlanAnswer | None:
        answer = self.planner.answer()
        self.is_planning &= answer is None
        return answer


@dataclass(frozen=True, slots=True)
class Heartbeat:
    took_s: float
    cpu_s: float
    is_while_planning: bool


async def measure(units: int, models: int, seconds: float, folder: Path) -> tuple[list[Heartbeat], dict[str, int]]:
    write_config(folder)
    process = PlannerProcess()
    watched = WatchedPlanner(process)

    def planner_for(solver: str, profiles: Mapping[str, str]) -> Planner:
        process.using(solver, profiles)
        return watched

    controller = Controller(token="t", planner_for=planner_for)
    demand = {"rate_per_s": _REQUESTS_PER_S, "prompt_tokens": 1400, "output_tokens": 200}
    sections = [
        {"id": f"m{i:03}", "source": str(folder), "demand": demand, "replicas": {"min": 1, "max": 8}}
        for i in range(models)
    ]
    await controller.reconfigure({"models": sections, "policy": "mux", "expected_units": {"p": units}})
    leases: list[Lease | None] = [None] * units
    asked, beats = np.zeros(models), list[Heartbeat]()
    start_s = time.monotonic()
    while (elapsed_s := time.monotonic() - start_s) < seconds:
        beat_s = time.monotonic()
        asked += _REQUESTS_PER_S * _BEAT_S
        asked[int(elapsed_s / 10) % models] += 20 * _REQUESTS_PER_S * _BEAT_S
        controller._loop.hear_demand(demand_report(models, asked), controller._clock.now_s())
        for unit in range(units):
            report = report_of(unit, leases[unit])
            is_planning, before_s, cpu_before_s = watched.is_planning, time.perf_counter(), time.thread_time()
            leases[unit] = await controller.heartbeat(report)
            took_s, cpu_s = time.perf_counter() - before_s, time.thread_time() - cpu_before_s
            beats.append(Heartbeat(took_s, cpu_s, is_planning))
            await asyncio.sleep(0)
        await asyncio.sleep(max(0.01, _BEAT_S - (time.monotonic() - beat_s)))
    kinds = [d.kind for d in (await controller.status()).decisions]
    await process.close()
    return beats, {kind: kinds.count(kind) for kind in sorted(set(kinds))}


def rows_of(beats: list[Heartbeat]) -> Iterator[dict[str, object]]:
    planning = [b for b in beats if b.is_while_planning]
    for when, found in (("all", beats), ("while a plan is worked out", planning)):
        if not found:
            continue
        took_ms, cpu_ms = (
            [1e3 * value for value in values] for values in zip(*((b.took_s, b.cpu_s) for b in found), strict=True)
        )
        yield {
            "when": when,
            "heartbeats": len(found),
            "p50_ms": float(np.percentile(took_ms, 50)),
            "p99_ms": float(np.percentile(took_ms, 99)),
            "max_ms": max(took_ms),
            "p99_cpu_ms": float(np.percentile(cpu_ms, 99)),
            "max_cpu_ms": max(cpu_ms),
        }


def main() -> None:
    parser = make_parser(__doc__, quick="10 seconds")
    parser.add_argument("--units", type=int, default=512)
    parser.add_argument("--models", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    seconds = 10.0 if options.quick else options.seconds
    with tempfile.TemporaryDirectory() as folder:
        beats, decisions = asyncio.run(measure(options.units, options.models, seconds, Path(folder)))
    rows = list(rows_of(beats))
    columns = {key: "{" + key + (":.2f}" if key.endswith("_ms") else "}") for key in rows[0]}
    print_table(rows, columns, title=f"{options.units} units, {options.models} models; decisions: {decisions}")
    write_report(
        options.json, machine_facts(), rows,
        units=options.units, models=options.models, seconds=seconds, decisions=decisions,
    )  # fmt: skip


if __name__ == "__main__":
    main()
