"""What prefill and decode apart gain and cost on real engines: 1P1D beside two units that do both parts.

Two fleets of two units each serve by turns, every unit an engine process on a core of its own, behind a gateway with
its HTTP, without Ray. In each round both fleets are asked the same arrivals and lengths, with prompts of their own, and
the other one begins. Rates are shares of what two cores would do if each request took them as long as it takes alone.
Targets are five times what a request takes alone: of a first token, of a gap. `second` is the gap behind the first
token, in which 1P1D moves the KV; `moved` what that takes of a request.

    python benchmarks/roles.py [--json FILE] [--rounds N] [--quick]
"""

import asyncio
import os
import re
import statistics
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from engines.llama_checkpoint import DEFAULT_CACHE, llama_checkpoint
from report.command import make_parser, print_table, write_report
from report.machine_facts import machine_facts

from pdmux_actor.backends.native import NativeEngine
from pdmux_actor.lease import Lease, ModelAssignment, ModelPhase
from pdmux_actor.messages import Slo
from pdmux_actor.serving.commands import EngineSettings
from pdmux_actor.serving.unit import Unit
from placement.unit_role import UnitRole
from router.http.app import create_app
from router.serving.gateway import Gateway
from router.view import FleetView, ModelCard, UnitView
from traces.outcome import Ending, RequestOutcome
from traces.record import TraceRecord
from traces.replay import replay
from traces.timeliness import SloTarget

MODEL, LAYERS, TOKEN = "llama", 4, "benchmark"
LENIENT = Slo(ttft_s=60.0, tbt_s=10.0)  # nothing is turned away: what is late is seen in the times
FLEETS: Mapping[str, tuple[UnitRole, UnitRole]] = {
    "both": (UnitRole.BOTH, UnitRole.BOTH),
    "1P1D": (UnitRole.PREFILL, UnitRole.DECODE),
}
VIEW_S, TIMEOUT_S, TARGET_TIMES = 0.5, 120.0, 5.0
COLUMNS: Mapping[str, str] = {
    "prompt + answer": "{shape}",
    "share": "{share:.1f}",
    "requests/s": "{rate_per_s:.2f}",
    "fleet": "{fleet}",
    "in time": "{in_time:.1%}",
    "TTFT p50": "{ttft_ms[p50]:.0f} ms",
    "p99": "{ttft_ms[p99]:.0f}",
    "gap p50": "{gap_ms[p50]:.1f} ms",
    "p99 ": "{gap_ms[p99]:.0f}",
    "second": "{second_ms:.0f} ms",
    "moved": "{moved_ms:.1f} ms",
    "KiB": "{moved_kib:.0f}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    prompt_tokens: int
    output_tokens: int

    @property
    def name(self) -> str:
        return f"{self.prompt_tokens} + {self.output_tokens}"

    def records(self, rate_per_s: float, count: int, seed: int) -> list[TraceRecord]:
        """Poisson arrivals; lengths vary by a third around the shape's."""
        rng = np.random.default_rng(seed)
        arrivals_s = np.cumsum(rng.exponential(size=count)) / rate_per_s
        spread = rng.uniform(2 / 3, 4 / 3, size=(count, 2))
        return [
            TraceRecord(
                arrival_s=float(at_s),
                input_tokens=max(2, int(self.prompt_tokens * wide)),
                output_tokens=max(2, int(self.output_tokens * long)),
                model=MODEL,
            )
            for at_s, (wide, long) in zip(arrivals_s, spread, strict=True)
        ]


SHAPES = (Shape(prompt_tokens=512, output_tokens=16), Shape(prompt_tokens=256, output_tokens=64))
SHARES = (0.3, 0.6)


@dataclass(frozen=True, slots=True)
class Fleet:
    gateway: Gateway
    url: str

    def moved(self) -> dict[str, float]:
        """Transfers so far: their number, bytes and seconds."""
        text = self.gateway.metrics.exposition().decode()
        return {
            name: sum(map(float, re.findall(rf"^muxfleet_kv_{name}\{{.*\}} (\S+)$", text, flags=re.MULTILINE)))
            for name in ("transfers_total", "transfer_bytes_total", "transfer_seconds_sum")
        }


@asynccontextmanager
async def served(roles: Sequence[UnitRole], checkpoint: Path) -> AsyncIterator[Fleet]:
    """Engines inherit the core that this process is bound to when they start."""
    settings = EngineSettings(kind="torch_cpu", kv_pool_bytes=512 << 20, num_cores=1, dtype="float32")
    cores = sorted(os.sched_getaffinity(0))
    gateway = Gateway()
    async with AsyncExitStack() as stack:
        units = []
        for number, role in enumerate(roles):
            unit = Unit(NativeEngine(settings), unit_id=f"u{number}", node="n", pool="p", num_gpus=1, role=role)
            os.sched_setaffinity(0, {cores[number % len(cores)]})
            try:
                await unit.start()
            finally:
                os.sched_setaffinity(0, cores)
            stack.push_async_callback(unit.stop)
            quota = unit.report().total_blocks
            model = ModelAssignment(model=MODEL, source=str(checkpoint), quota_blocks=quota, slo=LENIENT)
            unit.apply_lease(Lease(version=1, models=(model,), policy="mux", stream_token=TOKEN))
            units.append(unit)
        async with asyncio.timeout(TIMEOUT_S):
            while any([m.phase for m in u.report().models] != [ModelPhase.READY] for u in units):  # noqa: ASYNC110  it sets no event
                await asyncio.sleep(0.05)
        server = uvicorn.Server(uvicorn.Config(create_app(gateway), host="127.0.0.1", port=0, log_level="warning"))
        serving = asyncio.create_task(server.serve())
        viewing = asyncio.create_task(_keep_viewing(gateway, units, checkpoint))
        while not server.started:  # noqa: ASYNC110  nor does it
            await asyncio.sleep(0.01)
        try:
            yield Fleet(gateway, f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}")
        finally:
            viewing.cancel()
            server.should_exit = True
            await serving


async def _keep_viewing(gateway: Gateway, units: Sequence[Unit], checkpoint: Path) -> None:
    """In place of a control loop."""
    card = ModelCard(model=MODEL, source=str(checkpoint), revision=None, slo=LENIENT, created_s=1)
    while True:
        shown = tuple(UnitView(report=unit.report(), age_s=0.0) for unit in units)
        gateway.update_view(FleetView(models=(card,), units=shown, stream_token=TOKEN))
        await asyncio.sleep(VIEW_S)


async def asked(fleet: Fleet, records: Sequence[TraceRecord], seed: int) -> list[RequestOutcome]:
    outcomes = await replay(records, url=fleet.url, timeout_s=TIMEOUT_S, seed=seed, vocab_sizes={MODEL: 600})
    assert all(o.ending is Ending.FINISHED for o in outcomes), [o.error for o in outcomes if o.error]
    return outcomes


async def alone(fleet: Fleet, shape: Shape) -> tuple[float, SloTarget]:
    """Seconds that one request takes, and targets."""
    record = TraceRecord(
        arrival_s=0.0, input_tokens=shape.prompt_tokens, output_tokens=shape.output_tokens, model=MODEL
    )
    found = [(await asked(fleet, [record], seed=10_000 + n))[0] for n in range(6)][1:]
    ttft_s = statistics.median(o.ttft_s or 0.0 for o in found)
    gap_s = statistics.median(gap for o in found for gap in o.gaps_s)
    taken_s = statistics.median(o.end_s - o.sent_s for o in found)
    return taken_s, SloTarget(ttft_s=TARGET_TIMES * ttft_s, tbt_s=TARGET_TIMES * gap_s)


def figures(outcomes: Sequence[RequestOutcome], target: SloTarget, moved: Mapping[str, float]) -> dict[str, Any]:
    gaps_s = [gap for o in outcomes for gap in o.gaps_s]
    in_time = [(o.ttft_s or 0.0) <= target.ttft_s and max(o.gaps_s, default=0.0) <= target.tbt_s for o in outcomes]
    transfers = max(1.0, moved["transfers_total"])
    return {
        "requests": len(outcomes),
        "in_time": statistics.fmean(in_time),
        "ttft_ms": _percentiles([o.ttft_s or 0.0 for o in outcomes]),
        "gap_ms": _percentiles(gaps_s),
        "second_ms": 1e3 * statistics.median(o.gaps_s[0] for o in outcomes if o.gaps_s),
        "moved_ms": 1e3 * moved["transfer_seconds_sum"] / transfers,
        "moved_kib": moved["transfer_bytes_total"] / transfers / 1024,
        "target_ms": {"ttft": 1e3 * target.ttft_s, "tbt": 1e3 * target.tbt_s},
    }


def _percentiles(values_s: Sequence[float]) -> dict[str, float]:
    p50, p99 = np.percentile(values_s, [50, 99])
    return {"p50": 1e3 * float(p50), "p99": 1e3 * float(p99)}


async def measure(*, rounds: int, window_s: float) -> list[dict[str, Any]]:
    checkpoint, rows = llama_checkpoint(DEFAULT_CACHE, num_layers=LAYERS), []
    async with AsyncExitStack() as stack:
        fleets = {name: await stack.enter_async_context(served(roles, checkpoint)) for name, roles in FLEETS.items()}
        for shape in SHAPES:
            taken_s, target = await alone(fleets["both"], shape)
            await alone(fleets["1P1D"], shape)  # both are warm
            for share in SHARES:
                rate_per_s = share * 2 / taken_s
                answered: dict[str, list[RequestOutcome]] = {name: [] for name in fleets}
                moved = {name: dict.fromkeys(fleet.moved(), 0.0) for name, fleet in fleets.items()}
                for number in range(rounds):
                    records = shape.records(rate_per_s, max(8, int(rate_per_s * window_s)), seed=number)
                    for turn, name in enumerate(list(fleets)[:: 1 if number % 2 else -1]):
                        before = fleets[name].moved()
                        answered[name] += await asked(fleets[name], records, seed=2 * number + turn + len(rows) * 100)
                        after = fleets[name].moved()
                        moved[name] = {key: moved[name][key] + after[key] - before[key] for key in after}
                rows += [
                    {"shape": shape.name, "share": share, "rate_per_s": rate_per_s, "fleet": name}
                    | figures(outcomes, target, moved[name])
                    for name, outcomes in answered.items()
                ]
    return rows


def main() -> None:
    parser = make_parser(__doc__, quick="two rounds of five seconds")
    parser.add_argument("--rounds", type=int, help="of every rate; default 6")
    args = parser.parse_args()
    rounds = args.rounds or (2 if args.quick else 6)
    rows = asyncio.run(measure(rounds=rounds, window_s=5.0 if args.quick else 10.0))
    print_table(rows, COLUMNS, title="prefill and decode apart, and on the same units")
    write_report(args.json, machine_facts(), rows, layers=LAYERS, rounds=rounds)


if __name__ == "__main__":
    main()
