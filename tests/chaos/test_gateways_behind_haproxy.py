"""Gateways behind HAProxy, as the chart has them, replaced by `serve deploy` under load."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from chaos_faults import until_well
from chaos_fleet_file import fleet_on_two_nodes
from chaos_load import MODELS, Load
from deployed_fleet import DeployedFleet
from fleet_watch import through, until_replaced
from ray_nodes import ray_nodes

PORT = 20751
RAY_PORTS = 20760
UNITS = 4
GATEWAY, CONTROLLER = "ServeReplica:gateway:Gateway", "ServeReplica:control:Controller"
HAPROXY = "haproxy -dS"  # without splicing: muxfleet-haproxy has started it
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]


def fleet_file(folder: Path, hold_s: int) -> Path:
    """Replicas listen where the HAProxy of another node reaches them."""
    return fleet_on_two_nodes(folder, port=PORT, proxy="haproxy", host="0.0.0.0", hold_s=hold_s)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("haproxy")


@pytest.fixture(scope="module")
def fleet(folder: Path) -> Iterator[DeployedFleet]:
    with ray_nodes(ports=RAY_PORTS, head_cpus=0, haproxy=True) as nodes:
        nodes.add("stays", number=0).wait_until_started()
        nodes.add("goes", number=1)
        fleet = DeployedFleet(nodes)
        fleet.start(fleet_file(folder, 90), units=UNITS)
        yield fleet


@pytest.fixture(scope="module")
def load(fleet: DeployedFleet) -> Load:
    return Load.calibrated(fleet.url)


@pytest.mark.parametrize(("hold_s", "dies"), [(91, False), (92, True)], ids=["", "control loop killed"])
def test_gateways_behind_haproxy__replaced_by_serve_deploy__no_answer_that_a_client_would_not_retry(
    fleet: DeployedFleet, load: Load, folder: Path, capsys: pytest.CaptureFixture[str], hold_s: int, dies: bool
) -> None:
    async def change() -> None:
        await fleet.deploy(fleet_file(folder, hold_s))
        if dies:
            while not fleet.pids(GATEWAY) - gateways:  # noqa: ASYNC110  a state that sets no event
                await asyncio.sleep(0.1)
            fleet.found(CONTROLLER)[0].kill()  # the new gateway has not heard of the fleet yet
        await until_replaced(lambda: fleet.pids(GATEWAY), gateways)
        await fleet.until_running()
        await until_well(fleet, units=UNITS)

    said = ask(fleet, "Remember this.")
    gateways, controllers = fleet.pids(GATEWAY), fleet.pids(CONTROLLER)
    assert len(gateways) == 2
    assert fleet.found(HAPROXY), "HAProxy is what clients meet"
    name = f"gateway rollout behind HAProxy{', control loop killed' if dies else ''}"
    through(fleet, load, change, name, capsys, units=UNITS, after_s=10.0)

    ask(fleet, "And now?", previous_response_id=said)  # which no gateway of now has answered
    assert not fleet.pids(GATEWAY) & gateways
    assert bool(fleet.pids(CONTROLLER) & controllers) is not dies


def ask(fleet: DeployedFleet, text: str, **more: str) -> str:
    """The answer's id."""
    body = {"model": MODELS[0], "input": text, "max_output_tokens": 8, **more}
    answer = httpx.post(f"{fleet.url}/v1/responses", json=body, timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])
