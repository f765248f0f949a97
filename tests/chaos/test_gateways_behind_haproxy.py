"""Gateways behind HAProxy, as the chart has them, replaced by `serve deploy` under load."""

import asyncio
from pathlib import Path

import pytest
from chaos_faults import until_well
from chaos_fleet_file import fleet_of
from chaos_load import Load
from deployed_fleet import DeployedFleet
from fleet_watch import through
from ray_nodes import ray_nodes

PORT = 20751
RAY_PORTS = 20760
UNITS = 4
GATEWAY = "ServeReplica:gateway:Gateway"
HAPROXY = "haproxy -dS"  # without splicing: muxfleet-haproxy has started it
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]


def fleet_file(folder: Path, hold_s: int) -> Path:
    """Replicas listen where the HAProxy of another node reaches them."""
    pool = {"device": "simulated", "gpu_type": "A40", "gpus_per_node": 2, "kv_memory": "2GiB"}
    pools = tuple({"name": place, "node_labels": {"place": place}, **pool} for place in ("stays", "goes"))
    gateway = {"proxy": "haproxy", "host": "0.0.0.0", "hold_s": hold_s}
    return fleet_of(folder, port=PORT, pools=pools, sections={"gateway": gateway})


def test_gateways_behind_haproxy__replaced_by_serve_deploy__no_answer_that_a_client_would_not_retry(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def start() -> None:
        await fleet.deploy(fleet_file(tmp_path, 90))
        await fleet.until_reachable()
        await until_well(fleet, units=UNITS)

    async def change() -> None:
        await fleet.deploy(fleet_file(tmp_path, 91))
        while fleet.pids(GATEWAY) & gateways:  # noqa: ASYNC110  a state that sets no event
            await asyncio.sleep(0.2)
        await fleet.until_running()

    with ray_nodes(ports=RAY_PORTS, head_cpus=0, haproxy=True) as nodes:
        nodes.add("stays", number=0).wait_until_started()
        nodes.add("goes", number=1)
        fleet = DeployedFleet(nodes)
        asyncio.run(start())
        load = Load.calibrated(fleet.url)
        gateways = fleet.pids(GATEWAY)
        assert len(gateways) == 2
        assert fleet.found(HAPROXY), "HAProxy is what clients meet"
        through(fleet, load, change, "gateway rollout behind HAProxy", capsys, units=UNITS, after_s=10.0)

        assert not fleet.pids(GATEWAY) & gateways
