"""What a heartbeat and a gateway's news cost the control loop with all that carries them, and how many it can bear.

    python benchmarks/control_calls.py [--units 1000] [--models 100] [--json FILE] [--quick]

The product's Controller is a replica of Ray Serve. Units and gateways are played in this process: units tell busy
reports, once by Serve's calls and once over their streams, by turns; gateways ask for news of the whole fleet, as
objects that Serve pickles for each and as a text that is made once for all. Milliseconds are CPU time of the
controller's process, by the kernel's count; what one core could bear in a second is their inverse.
"""

import asyncio
import os
import statistics
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray
from fleets.told_reports import busy, demand_report, report_of, write_config
from ray import serve
from ray.serve.handle import DeploymentHandle
from report.command import make_parser, print_table, write_report
from report.machine_facts import machine_facts

from deploy.serve.app_args import CONTROL_APP, CONTROLLER_DEPLOYMENT
from deploy.serve.controller import Controller
from pdmux_actor.lease import Lease, UnitReport
from pdmux_actor.serving.control_link import ControlLink
from router.view import read_news

_AT_ONCE = 50
_GATEWAYS = 8


class MeasuredController(Controller):
    async def pid(self) -> int:
        return os.getpid()


class PlayedUnits:
    """Each tells once in a block, so many at once."""

    def __init__(self, handle: DeploymentHandle[Any], units: int) -> None:
        self._handle = handle
        self._links = [ControlLink(CONTROLLER_DEPLOYMENT, CONTROL_APP) for _ in range(units)]
        self._leases: list[Lease | None] = [None] * units

    async def by_serve(self, unit: int, report: UnitReport) -> None:
        await self._handle.heartbeat.remote(report)

    async def by_stream(self, unit: int, report: UnitReport) -> None:
        self._leases[unit] = await self._links[unit].heartbeat(report)

    async def tell(self, way: Callable[[int, UnitReport], Awaitable[None]]) -> None:
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(unit: int) -> None:
            async with gate:
                await way(unit, busy(report_of(unit, self._leases[unit])))

        await asyncio.gather(*(one(unit) for unit in range(len(self._links))))


class PlayedGateways:
    def __init__(self, handle: DeploymentHandle[Any], models: int) -> None:
        self._handle = handle
        self._models = models

    async def as_objects(self, units: int) -> None:
        async def one(number: int) -> None:
            asked = replace(demand_report(self._models, np.ones(self._models)), gateway_id=f"g{number}")
            news = await self._handle.fleet_news.remote(asked, (), None, 0.0)
            assert len(news.view.units) == units

        await asyncio.gather(*map(one, range(_GATEWAYS)))

    async def as_text(self, units: int) -> None:
        async def one(number: int) -> None:
            asked = replace(demand_report(self._models, np.ones(self._models)), gateway_id=f"g{number}")
            news = read_news(await self._handle.told_news.remote(asked, (), None, 0.0))
            assert len(news.view.units) == units

        await asyncio.gather(*map(one, range(_GATEWAYS)))


async def measure(folder: Path, units: int, models: int, rounds: int) -> list[dict[str, Any]]:
    write_config(folder)
    sections = [{"id": f"m{i:03}", "source": str(folder), "replicas": {"min": 1, "max": 8}} for i in range(models)]
    config = {"models": sections, "policy": "mux", "expected_units": {"p": units}}
    deployment = serve.deployment(
        MeasuredController,
        name=CONTROLLER_DEPLOYMENT,
        user_config=config,
        max_ongoing_requests=1000,
        ray_actor_options={"num_cpus": 0.1},
    )
    handle = await asyncio.to_thread(lambda: serve.run(deployment.bind(), name=CONTROL_APP, route_prefix=None))
    process = psutil.Process(await handle.pid.remote())
    played, gateways = PlayedUnits(handle, units), PlayedGateways(handle, models)
    await played.tell(played.by_stream)
    await asyncio.sleep(10.0)  # the first plan
    await played.tell(played.by_stream)  # leases
    ways: Mapping[str, tuple[Callable[[], Awaitable[None]], int]] = {
        "heartbeat by Serve": (lambda: played.tell(played.by_serve), units),
        "heartbeat by stream": (lambda: played.tell(played.by_stream), units),
        "news as objects": (lambda: gateways.as_objects(units), _GATEWAYS),
        "news as text": (lambda: gateways.as_text(units), _GATEWAYS),
    }
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, (ask, count) in ways.items():
            before = process.cpu_times()
            await ask()
            after = process.cpu_times()
            spent[name].append(1e3 * (after.user + after.system - before.user - before.system) / count)
    return [
        {"way": name, "ms": statistics.median(each), "least_ms": min(each), "most_ms": max(each), "rounds": rounds}
        for name, each in spent.items()
    ]


COLUMNS: Mapping[str, str] = {
    "way": "{way}",
    "ms of CPU each": "{ms:.3f}",
    "least..most": "{least_ms:.3f}..{most_ms:.3f}",
    "a core bears in a second": "{bears:.0f}",
}


def main() -> None:
    parser = make_parser(__doc__, quick="fewer rounds")
    parser.add_argument("--units", type=int, default=1000)
    parser.add_argument("--models", type=int, default=100)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mux-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        ray.init(
            address="local",
            num_cpus=8,
            include_dashboard=False,
            object_store_memory=200_000_000,
            log_to_driver=False,
            _temp_dir=folder,
        )
        checkpoint = Path(folder) / "checkpoint"
        checkpoint.mkdir()
        rows = asyncio.run(measure(checkpoint, args.units, args.models, 3 if args.quick else 10))
        serve.shutdown()
        ray.shutdown()
    rows = [row | {"bears": 1e3 / row["ms"]} for row in rows]
    print_table(rows, COLUMNS, title=f"the control loop's cost, {args.units} units, {args.models} models")
    write_report(args.json, machine_facts(), rows, units=args.units, models=args.models)


if __name__ == "__main__":
    main()
