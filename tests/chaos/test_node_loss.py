"""A Ray node dies under load, for real, and comes back; its fleet has so little KV memory that blocks run out."""

import asyncio
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from chaos_faults import until_balanced, until_well
from chaos_fleet_file import LITTLE_KV_MEMORY, fleet_on_two_nodes
from chaos_load import Load
from fleet_process import FleetProcess
from ray_nodes import RayNode, RayNodes, ray_nodes

PORT = 20431
RAY_PORTS = 20440
START_S = 120.0
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def nodes() -> Iterator[RayNodes]:
    with ray_nodes(ports=RAY_PORTS) as nodes:
        yield nodes


@pytest.fixture
def fleet(nodes: RayNodes, tmp_path: Path) -> Iterator[tuple[FleetProcess, RayNode]]:
    """With the node that will be lost. It joins when the gateways run, so that they are on the other one."""
    process = FleetProcess(fleet_on_two_nodes(tmp_path, port=PORT, kv_memory=LITTLE_KV_MEMORY), nodes.environment)
    try:
        _wait_for_gateway(process)
        worker = nodes.add()
        process.wait_until_serving()
        yield process, worker
        process.assert_stops_well()
    finally:
        process.kill()


def test_ray_node__killed_under_load_and_replaced__no_request_is_lost_and_models_move_there_and_back(
    fleet: tuple[FleetProcess, RayNode], nodes: RayNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    process, worker = fleet
    load = Load.calibrated(process.url)
    asyncio.run(until_well(process, units=4))
    took_s: list[float] = []

    async def trouble() -> None:
        worker.kill()
        took_s.append(await until_well(process, units=2))
        nodes.add()
        took_s.append(await until_well(process, units=4))

    run = load.through(trouble)
    preempted = _sum_of("muxfleet_preemptions_total", process)

    with capsys.disabled():
        told = {"requests": len(run.answers), "well_on_half_s": took_s[0], "well_again_s": took_s[1]}
        print(f"\n  node killed: {json.dumps(told | {'preempted': preempted})}")
    assert not run.lost()
    assert not run.refused()
    assert not run.wrong()
    asyncio.run(until_balanced(process))


def _wait_for_gateway(process: FleetProcess) -> None:
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s:
        try:
            if httpx.get(f"http://127.0.0.1:{PORT}/health", timeout=5, trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            pass  # the proxy is not up yet
        time.sleep(0.5)
    raise AssertionError(f"no gateway after {START_S:g} s:\n{process.output}")


def _sum_of(metric: str, process: FleetProcess) -> float:
    text = httpx.get(f"{process.url}/metrics", timeout=10, trust_env=False).text
    return sum(float(v) for v in re.findall(rf"^{metric}\{{.*\}} ([0-9.e+]+)$", text, flags=re.MULTILINE))
