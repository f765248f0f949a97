"""How long streams wait at a gateway that is told of a large fleet, and asked for its metrics.

    python benchmarks/large_fleet.py [--units 1000] [--models 100] [--json FILE] [--quick]

A gateway in this process takes in news of so many units, as the control loop sends them, and answers scrapes; meanwhile
a clock ticks on the loop that serves streams, every millisecond. A row for each: its CPU time, and by how much the
latest tick was late, which is what a token would have waited.
"""

import asyncio
import gc
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx
import uvloop
from fleets.told_reports import busy, report_of
from report.command import make_parser, print_table, write_report
from report.machine_facts import machine_facts

from pdmux_actor.lease import Lease, ModelAssignment
from pdmux_actor.messages import Slo
from router.http.app import create_app
from router.serving.gateway import Gateway
from router.view import FleetNews, FleetView, ModelCard, UnitView, read_news, write_news

_TICK_S = 0.001
_MODELS_PER_UNIT = 2
_SLO = Slo(ttft_s=1.0, tbt_s=0.05)


def news_of(units: int, models: int, version: int) -> bytes:
    def lease(unit: int) -> Lease:
        held = [f"m{(unit * _MODELS_PER_UNIT + i) % models:03}" for i in range(_MODELS_PER_UNIT)]
        assigned = [ModelAssignment(model=model, source="/m", quota_blocks=1, slo=_SLO) for model in held]
        return Lease(version=version, models=tuple(assigned), policy="mux", stream_token="t")

    cards = [ModelCard(model=f"m{i:03}", source="/m", revision=None, slo=_SLO, created_s=0) for i in range(models)]
    views = [UnitView(report=busy(report_of(unit, lease(unit))), age_s=0.1) for unit in range(units)]
    view = FleetView(models=tuple(cards), units=tuple(views), stream_token="t")
    return write_news(FleetNews(view=view, version=(version,)))


class Ticks:
    """`latest_s`: by how much the latest one since `begin` was late."""

    def __init__(self) -> None:
        self.latest_s = 0.0
        self._task = asyncio.create_task(self._tick())

    def begin(self) -> None:
        self.latest_s = 0.0

    async def _tick(self) -> None:
        while True:
            due_s = time.perf_counter() + _TICK_S
            await asyncio.sleep(_TICK_S)
            self.latest_s = max(self.latest_s, time.perf_counter() - due_s)


async def measure(units: int, models: int, rounds: int) -> list[dict[str, Any]]:
    gateway, ticks = Gateway(), Ticks()
    bodies = [news_of(units, models, version) for version in range(2)]
    transport = httpx.ASGITransport(create_app(gateway))
    rows = []
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:

        async def told(number: int) -> None:
            gateway.update_view(read_news(bodies[number % 2]).view)

        async def scraped(number: int) -> None:
            assert (await client.get("/metrics")).status_code == 200

        async def nothing(number: int) -> None:
            await asyncio.sleep(0.2)

        asked: Mapping[str, Callable[[int], Awaitable[None]]] = {
            "nothing": nothing,
            "news of the fleet": told,
            "a scrape": scraped,
        }
        await told(0)
        gc.collect()
        gc.freeze()  # as a gateway's replica does
        for what, ask in asked.items():
            spent_ms, late_ms = [], []
            for number in range(rounds):
                await asyncio.sleep(0.05)
                ticks.begin()
                before_s = time.process_time()
                await ask(number)
                await asyncio.sleep(0.01)  # the tick that was due meanwhile
                spent_ms.append(1e3 * (time.process_time() - before_s))
                late_ms.append(1e3 * ticks.latest_s)
            rows.append(
                {
                    "what": what,
                    "cpu_ms": statistics.median(spent_ms),
                    "late_ms": statistics.median(late_ms),
                    "most_late_ms": max(late_ms),
                    "load_average_1_min": round(os.getloadavg()[0], 1),
                }
            )
    await gateway.close()
    return rows


COLUMNS: Mapping[str, str] = {
    "what": "{what}",
    "CPU ms": "{cpu_ms:.1f}",
    "a token waits ms": "{late_ms:.1f}",
    "at most": "{most_late_ms:.1f}",
}


def main() -> None:
    parser = make_parser(__doc__, quick="fewer rounds")
    parser.add_argument("--units", type=int, default=1000)
    parser.add_argument("--models", type=int, default=100)
    args = parser.parse_args()
    rows = uvloop.run(measure(args.units, args.models, 5 if args.quick else 20))
    print_table(rows, COLUMNS, title=f"a gateway that knows {args.units} units and {args.models} models")
    write_report(args.json, machine_facts(), rows, units=args.units, models=args.models)


if __name__ == "__main__":
    main()
