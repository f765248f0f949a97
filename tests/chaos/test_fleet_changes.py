"""What is done to a fleet on purpose, under load: drains of units and nodes, new settings, another pool. Nothing is
lost and nothing refused. One fleet on two raylets for all: each scenario begins with what the last one left.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from chaos_faults import unit_ids, until_well
from chaos_fleet_file import fleet_of
from chaos_load import MODELS, Load
from fleet_process import FleetProcess, command_line
from fleet_watch import through, until_replaced
from ray_nodes import RayNode, RayNodes, ray_nodes

from deploy.fleet_file.section import DrainSection

PORT = 20631
RAY_PORTS = 20640
DRAIN = DrainSection(move_s=20.0, finish_s=10.0)
UNITS = 4
PATIENCE_S = 150.0
RAY_EXPORTS_S = 30.0  # it tells its metrics every ten
DASHBOARD = Path(__file__).parents[2] / "helm" / "files" / "dashboards" / "cluster.json"
LABELS = frozenset({"ray_io_cluster"})  # which the PodMonitor gives
ONLY_AFTER_A_FAILURE = frozenset({"ray_serve_health_check_failures_total"})
ENGINE, CONTROLLER = "pdmux_actor.serving.process", "ServeReplica:control:Controller"
IN_THE_MIDDLE = ("", ", controller killed")
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]
controller_lives_or_dies = pytest.mark.parametrize("controller_dies", [False, True], ids=["", "controller killed"])


class Changed:
    """A fleet on two nodes, of which the second comes and goes."""

    def __init__(self, folder: Path, nodes: RayNodes) -> None:
        self._folder = folder
        self._nodes = nodes
        self.metrics_url = nodes.metrics_url
        self.process = FleetProcess(self.file(), nodes.environment)
        self.worker: RayNode | None = None

    def file(self, *, more: tuple[dict[str, object], ...] = (), **sections: dict[str, object]) -> Path:
        pool = {"device": "simulated", "gpu_type": "A40", "gpus_per_node": 2, "kv_memory": "2GiB"}
        pools = tuple({"name": place, "node_labels": {"place": place}, **pool} for place in ("stays", "goes"))
        drain = {"drain": DRAIN.model_dump()}
        return fleet_of(self._folder, port=PORT, pools=(*pools, *more), sections={**drain, **sections})

    def add_node(self) -> None:
        self.worker = self._nodes.add()

    def pids(self, title: str) -> set[int]:
        return {p.pid for p in self._found(title)}

    def kill(self, title: str) -> None:
        for process in self._found(title):
            process.kill()

    def _found(self, title: str) -> list[psutil.Process]:
        return [p for p in self._nodes.processes() if title in command_line(p)]

    async def muxfleet(self, *arguments: str) -> str:
        """Its output; it must end well."""
        running = await asyncio.create_subprocess_exec(
            *self.process.command(*arguments),
            env=self._nodes.environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await asyncio.wait_for(running.communicate(), PATIENCE_S)
        assert running.returncode == 0, output.decode()
        return output.decode()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Changed]:
    with ray_nodes(ports=RAY_PORTS, drain_s=DRAIN.node_s) as nodes:
        changed = Changed(tmp_path_factory.mktemp("changes"), nodes)
        try:
            changed.add_node()
            changed.process.wait_until_serving()
            asyncio.run(until_well(changed.process, units=UNITS))
            yield changed
        finally:
            changed.process.kill()


@pytest.fixture(scope="module")
def load(fleet: Changed) -> Load:
    return Load.calibrated(fleet.process.url)


def test_ray__its_metrics_while_a_fleet_serves__have_what_the_dashboard_of_the_cluster_asks(
    fleet: Changed, load: Load
) -> None:
    used = set(re.findall(r"\bray_[a-z0-9_]+", DASHBOARD.read_text())) - LABELS - ONLY_AFTER_A_FAILURE
    missing = used
    until_s = time.monotonic() + RAY_EXPORTS_S
    while missing and time.monotonic() < until_s:
        text = httpx.get(fleet.metrics_url, timeout=30, trust_env=False).text
        missing = used - set(re.findall(r"^(ray_[a-z0-9_]+)", text, re.MULTILINE))
        time.sleep(1.0)

    assert len(used) >= 10
    assert not missing


def test_unit__drained_with_the_controller_killed_in_the_middle__is_emptied_and_used_again(
    fleet: Changed, load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    async def change() -> None:
        unit = sorted(await unit_ids(fleet.process))[0]
        draining = asyncio.create_task(fleet.muxfleet("drain", unit))
        while not (await cordons(fleet)):  # noqa: ASYNC110  a state that sets no event
            await asyncio.sleep(0.1)
        fleet.kill(CONTROLLER)
        assert "drained in" in await draining
        await fleet.muxfleet("uncordon", unit)
        await until_well(fleet.process, units=UNITS)

    through(fleet.process, load, change, "drain of a unit, controller killed", capsys, units=UNITS)


def test_gateway_setting__changed__replaces_gateways_and_neither_control_loop_nor_units(
    fleet: Changed, load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    def others() -> tuple[set[int], set[int]]:
        return fleet.pids(CONTROLLER), fleet.pids(ENGINE)

    async def change() -> None:
        file = fleet.file(gateway={"hold_s": 91})
        asking = asyncio.create_task(ended_in_background(fleet.process.url, is_replaced))
        assert "restarts the gateways, one after the other" in await fleet.muxfleet("apply", "--restart", str(file))
        await until_replaced(lambda: fleet.pids("ServeReplica:gateway:Gateway"), gateways)
        is_replaced.set()
        ended.extend(await asking)

    is_replaced, ended = asyncio.Event(), list[str]()
    gateways, before = fleet.pids("ServeReplica:gateway:Gateway"), others()
    watch = through(fleet.process, load, change, "gateway setting", capsys, units=UNITS)

    assert others() == before
    assert watch.fewest == 2
    assert len(ended) > 4
    assert set(ended) == {"incomplete"}  # all the tokens that were asked for


@controller_lives_or_dies
def test_second_pool__added_and_removed__restarts_no_unit_of_the_others(
    fleet: Changed, load: Load, capsys: pytest.CaptureFixture[str], controller_dies: bool
) -> None:
    async def change() -> None:
        more = {"name": "more", "device": "simulated", "gpu_type": "A40", "kv_memory": "2GiB", "node_labels": STAYS}
        killing = controller_killed_when(fleet, began, controller_dies)
        await fleet.muxfleet("apply", str(fleet.file(more=(more,), gateway={"hold_s": 91})))
        await killing
        await until_well(fleet.process, units=UNITS + 1)
        seen.append(fleet.pids(ENGINE) >= before)
        await fleet.muxfleet("apply", "--restart", str(fleet.file(gateway={"hold_s": 91})))
        await until_well(fleet.process, units=UNITS)

    async def began() -> bool:
        return bool(fleet.pids(ENGINE) - before)

    seen: list[bool] = []
    before = fleet.pids(ENGINE)
    through(
        fleet.process, load, change, "pool added, then removed" + IN_THE_MIDDLE[controller_dies], capsys, units=UNITS
    )

    assert seen == [True]
    assert fleet.pids(ENGINE) == before


@pytest.mark.parametrize(("sequences", "controller_dies"), [(48, False), (49, True)], ids=["", "controller killed"])
def test_engine_setting__changed__replaces_units_one_by_one(
    fleet: Changed, load: Load, capsys: pytest.CaptureFixture[str], sequences: int, controller_dies: bool
) -> None:
    async def change() -> None:
        file = fleet.file(gateway={"hold_s": 91}, engine={"max_running_sequences": sequences})
        killing = controller_killed_when(fleet, began, controller_dies)
        await fleet.muxfleet("apply", "--restart", str(file))
        await killing
        await until_replaced(lambda: fleet.pids(ENGINE), before)
        await until_well(fleet.process, units=UNITS)

    async def began() -> bool:
        return not before <= fleet.pids(ENGINE)

    before = fleet.pids(ENGINE)
    through(fleet.process, load, change, "engine setting" + IN_THE_MIDDLE[controller_dies], capsys, units=UNITS)


@controller_lives_or_dies
def test_node__terminated_as_a_pod_is__is_drained_by_itself_and_replaced(
    fleet: Changed, load: Load, capsys: pytest.CaptureFixture[str], controller_dies: bool
) -> None:
    async def change() -> None:
        worker = fleet.worker
        assert worker is not None
        killing = controller_killed_when(fleet, began, controller_dies)
        worker.terminate()
        until_s = time.monotonic() + DRAIN.pod_s
        while worker.is_there() and time.monotonic() < until_s:  # noqa: ASYNC110  a process that ends
            await asyncio.sleep(0.2)
        worker.kill()
        await killing
        fleet.add_node()
        await until_well(fleet.process, units=UNITS)

    async def began() -> bool:
        return any(unit["cordon"] for unit in (await told_by(fleet)).get("units", ()))

    through(fleet.process, load, change, "node terminated" + IN_THE_MIDDLE[controller_dies], capsys, units=UNITS)


def controller_killed_when(
    fleet: Changed, began: Callable[[], Awaitable[bool]], controller_dies: bool
) -> asyncio.Task[None]:
    """Ends when it is killed; at once when it shall live."""

    async def kill() -> None:
        while controller_dies and not await began():  # noqa: ASYNC110  a state that sets no event
            await asyncio.sleep(0.1)
        if controller_dies:
            fleet.kill(CONTROLLER)

    return asyncio.create_task(kill())


STAYS = {"place": "stays"}


async def cordons(fleet: Changed) -> list[object]:
    return list((await told_by(fleet)).get("cordons", ()))


async def told_by(fleet: Changed) -> dict[str, Any]:
    """Nothing while the control loop does not answer."""
    async with httpx.AsyncClient(timeout=30, trust_env=False) as http:
        response = await http.get(f"{fleet.process.url}/fleet")
        return dict(response.json()) if response.status_code == 200 else {}


async def ended_in_background(url: str, is_over: asyncio.Event) -> list[str]:
    """Asks for responses in the background, one each second until then; returns how they ended."""
    asked: list[str] = []
    found: list[str] = []
    body = {"model": MODELS[0], "input": "A story.", "background": True, "max_output_tokens": 150}
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http, asyncio.timeout(PATIENCE_S):
        while not is_over.is_set():
            asked.append((await http.post("/v1/responses", json=body)).json()["id"])
            await asyncio.sleep(1.0)
        for response_id in asked:
            while True:
                status = (await http.get(f"/v1/responses/{response_id}")).json()["status"]
                if status not in ("queued", "in_progress"):
                    break
                await asyncio.sleep(0.1)
            found.append(status)
    return found
