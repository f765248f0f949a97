"""A fleet as the chart has it, under load: Redis behind a head without CPUs, two workers, `serve deploy`."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from chaos_faults import until_well
from chaos_fleet_file import fleet_on_two_nodes
from chaos_load import Load
from deployed_fleet import DeployedFleet
from fleet_watch import through, until_replaced
from ray_nodes import RayNodes, ray_nodes, short_folder
from redis_server import RedisServer, redis_server

PORT = 20731
RAY_PORTS = 20740
REDIS_PORT = 20749
UNITS = 4
HEAD_ENDS_S = 90.0
WORKERS_END_S = 120.0
WITHOUT_REDIS_S = 20.0
WITHOUT_SERVE_S = 10.0
WITHOUT_HEAD_S = 75.0  # longer than workers wait that KubeRay has not told to
FileWith = Callable[..., Path]
GATEWAY, CONTROLLER = "ServeReplica:gateway:Gateway", "ServeReplica:control:Controller"
ENGINE = "pdmux_actor.serving.process"
PARTS = (GATEWAY, CONTROLLER, ENGINE)
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with short_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def redis(folder: Path) -> Iterator[RedisServer]:
    with redis_server(folder, port=REDIS_PORT) as redis:
        yield redis


@pytest.fixture(scope="module")
def nodes(folder: Path, redis: RedisServer) -> Iterator[RayNodes]:
    with ray_nodes(folder, ports=RAY_PORTS, head_cpus=0, redis=redis.address) as nodes:
        nodes.add("stays", number=0).wait_until_started()
        nodes.add("goes", number=1)
        yield nodes


@pytest.fixture(scope="module")
def file_with(tmp_path_factory: pytest.TempPathFactory) -> FileWith:
    """With keys of the section `gateway`."""
    folder = tmp_path_factory.mktemp("deployed")

    def write(**gateway: object) -> Path:
        return fleet_on_two_nodes(folder, port=PORT, **gateway)

    return write


@pytest.fixture(scope="module")
def fleet(nodes: RayNodes, file_with: FileWith) -> DeployedFleet:
    fleet = DeployedFleet(nodes)
    fleet.start(file_with(), units=UNITS)
    return fleet


@pytest.fixture(scope="module")
def load(fleet: DeployedFleet) -> Load:
    return Load.calibrated(fleet.url)


def test_gateways__replaced_by_serve_deploy__no_answer_that_a_client_would_not_retry(
    fleet: DeployedFleet, file_with: FileWith, load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    async def change() -> None:
        await fleet.deploy(file_with(hold_s=91))
        await until_replaced(lambda: fleet.pids(GATEWAY), gateways)
        await fleet.until_running()

    gateways = fleet.pids(GATEWAY)
    others = {part: fleet.pids(part) for part in PARTS if part != GATEWAY}
    through(fleet, load, change, "gateway rollout by serve deploy", capsys, units=UNITS, after_s=10.0)

    assert len(gateways) == 2
    assert {part: fleet.pids(part) for part in others} == others


def test_head__lost_for_longer_than_raylets_wait_by_default__is_started_again_and_no_process_of_ours_is_replaced(
    fleet: DeployedFleet, nodes: RayNodes, load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    async def change() -> None:
        nodes.head.kill()
        await asyncio.sleep(WITHOUT_HEAD_S)
        await asyncio.to_thread(nodes.start_head)
        await fleet.until_running()
        await until_well(fleet, units=UNITS)

    through_with_the_same_processes(fleet, load, change, "head lost", capsys)


def test_head__lost_and_then_an_engine_and_the_control_loop__come_back_with_the_head(
    fleet: DeployedFleet, nodes: RayNodes, file_with: FileWith, load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    async def change() -> None:
        nodes.head.kill()
        await asyncio.sleep(5.0)
        fleet.found(ENGINE)[0].kill()
        await asyncio.sleep(5.0)
        fleet.found(CONTROLLER)[0].kill()
        await asyncio.sleep(10.0)
        await asyncio.to_thread(nodes.start_head)
        await fleet.until_running()
        await until_well(fleet, units=UNITS)

    gateways, others = fleet.pids(GATEWAY), fleet.pids(ENGINE)
    through(fleet, load, change, "head lost, then an engine and the control loop", capsys, units=UNITS, after_s=10.0)

    assert fleet.pids(GATEWAY) == gateways
    assert len(fleet.pids(ENGINE) & others) == UNITS - 1
    asyncio.run(change_gateways(fleet, file_with))
    assert not fleet.pids(GATEWAY) & gateways


def test_redis__lost_while_the_fleet_serves__takes_the_head_along_and_both_come_back_to_the_same_processes(
    fleet: DeployedFleet, nodes: RayNodes, redis: RedisServer, load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    async def change() -> None:
        took_s = await lose(redis, nodes)
        with capsys.disabled():
            print(f"\n  the head ended {took_s:.1f} s after Redis", end="")
        await asyncio.sleep(WITHOUT_REDIS_S)
        await asyncio.to_thread(redis.start)
        await asyncio.to_thread(nodes.start_head)
        await fleet.until_running()
        await until_well(fleet, units=UNITS)

    through_with_the_same_processes(fleet, load, change, "Redis lost, and the head by it", capsys)


def test_serve__its_own_controller_ends_for_good__the_same_deploy_again_finds_the_same_processes(
    fleet: DeployedFleet, load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    """What KubeRay does by itself when Serve tells of no application."""

    async def change() -> None:
        await fleet.end_serves_controller()
        await asyncio.sleep(WITHOUT_SERVE_S)
        await fleet.deploy_again()
        await fleet.until_running()
        await until_well(fleet, units=UNITS)

    through_with_the_same_processes(fleet, load, change, "Serve's controller ended for good", capsys)


def test_redis__comes_back_empty__workers_end_and_the_same_deploy_starts_the_fleet_anew(
    fleet: DeployedFleet, nodes: RayNodes, redis: RedisServer, load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    async def change() -> None:
        await lose(redis, nodes)
        redis.forget()
        await asyncio.to_thread(redis.start)
        await asyncio.to_thread(nodes.start_head)
        began_s = time.monotonic()
        while fleet.pids(ENGINE):
            assert time.monotonic() - began_s < WORKERS_END_S, "they wait for a head that does not know them"
            await asyncio.sleep(0.5)
        nodes.add("stays", number=0).wait_until_started()  # as KubeRay starts their pods again
        nodes.add("goes", number=1)
        await fleet.deploy_again()
        await fleet.until_reachable()
        await until_well(fleet, units=UNITS)
        with capsys.disabled():
            print(f"\n  well again {time.monotonic() - began_s:.0f} s after the head that found Redis empty", end="")

    asyncio.run(change())
    again = Load.calibrated(fleet.url)
    assert again.expected == load.expected


def through_with_the_same_processes(
    fleet: DeployedFleet,
    load: Load,
    change: Callable[[], Awaitable[None]],
    name: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No gateway, engine or control loop is replaced."""
    before = {part: fleet.pids(part) for part in PARTS}
    through(fleet, load, change, name, capsys, units=UNITS, after_s=10.0)

    assert all(before.values())
    assert {part: fleet.pids(part) for part in PARTS} == before


async def lose(redis: RedisServer, nodes: RayNodes) -> float:
    """After how long Redis has taken the head along."""
    redis.kill()
    began_s = time.monotonic()
    while nodes.head.is_there():
        assert time.monotonic() - began_s < HEAD_ENDS_S, "Ray's store does without Redis: docs/production.md is wrong"
        await asyncio.sleep(0.2)
    return time.monotonic() - began_s


async def change_gateways(fleet: DeployedFleet, file_with: FileWith) -> None:
    """The new head takes changes as the old one did."""
    gateways = fleet.pids(GATEWAY)
    await fleet.deploy(file_with(hold_s=92))
    async with asyncio.timeout(120.0):
        await until_replaced(lambda: fleet.pids(GATEWAY), gateways)
    await fleet.until_running()  # what Serve has only just started when it loses the head, it starts anew
