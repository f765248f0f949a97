"""A new image under load, as the chart brings it: its RayService and its Job against stand-ins of API server, KubeRay,
kubelets and Service, whose pods are Ray nodes with the fleet on them. The control loop is killed in each drain.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("celpy", reason="needs what `make test-k8s` installs")

from chaos_faults import until_well
from chaos_fleet_file import fleet_on_two_nodes
from chaos_load import Load
from deployed_fleet import DeployedFleet
from fleet_watch import through
from helm_runner import TOOLS, Helm, copied_chart, merged, objects_of, of_kind, ray_service
from kubernetes_schemas import CustomSchemas
from ray_nodes import ray_nodes, short_folder
from redis_server import redis_server
from running_pods import RunningPods, ticking
from server_store import put_release
from service_standin import service
from standin_server import api_standin
from standin_store import ObjectStore

from deploy.fleet_file.section import DrainSection

PORT = 20931
SERVICE_PORT = 20939
RAY_PORTS = 20940
REDIS_PORT = 20959
NAME = "fleet-muxfleet"
GROUPS = {"stays": 0, "goes": 1}
UNITS = 4
DRAIN = DrainSection(move_s=20.0, finish_s=10.0)
PATIENCE_S = 600.0
CONTROLLER, ENGINE, GATEWAY = (
    "ServeReplica:control:Controller",
    "pdmux_actor.serving.process",
    "ServeReplica:gateway:Gateway",
)
pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not (TOOLS / "helm4").is_dir(), reason="needs Helm and the CRDs, as `make test-k8s` fetches them"
    ),
]


@dataclass(frozen=True, slots=True)
class Installed:
    """A release of the chart, whose pods run."""

    helm: Helm
    chart: Path
    values: dict[str, Any]
    store: ObjectStore
    api: str
    pods: RunningPods
    fleet: DeployedFleet

    def rendered(self, tag: str) -> list[dict[str, Any]]:
        outcome = self.helm.template(self.chart, overrides=merged(self.values, {"image": {"tag": tag}}))
        assert outcome.code == 0, outcome.errors
        return objects_of(outcome.output)

    def apply(self, objects: list[dict[str, Any]]) -> None:
        put_release(self.store, objects)

    async def job(self, objects: list[dict[str, Any]]) -> str:
        """What the chart's Job says; it must end well."""
        (job,) = of_kind(objects, "Job")
        (container,) = job["spec"]["template"]["spec"]["containers"]
        program, *command = container["command"]
        assert program == "muxfleet"
        options = [o for o in container["args"] if not o.startswith("--gateway=")]
        return await self.fleet.muxfleet(
            *command, *options, f"--gateway={self.fleet.url}", f"--api-server={self.api}", patience_s=PATIENCE_S
        )

    def clusters(self) -> list[str]:
        return [name for kind, name in self.store.contents() if kind == "RayCluster"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    folder = tmp_path_factory.mktemp("upgrade")
    file = fleet_on_two_nodes(folder, port=PORT, proxy="haproxy", host="0.0.0.0")
    values = {
        "fleet": json.loads(file.read_text()) | {"drain": DRAIN.model_dump()},
        "modelCache": {"enabled": True, "mountPath": str(folder)},
        "rayAuth": {"mode": "disabled", "allowDisabled": True},
        "redis": {"address": f"127.0.0.1:{REDIS_PORT}"},
    }
    with ExitStack() as stack:
        short = stack.enter_context(short_folder())
        redis = stack.enter_context(redis_server(short, port=REDIS_PORT))
        nodes = stack.enter_context(ray_nodes(short, ports=RAY_PORTS, head_cpus=0, redis=redis.address, haproxy=True))
        store = ObjectStore(CustomSchemas.read(sorted((TOOLS / "crds").glob("*.yaml"))))
        pods = RunningPods(store, {"machine": 0}, ray=nodes, groups=GROUPS)
        url = stack.enter_context(service(SERVICE_PORT, pods.endpoints))
        fleet = DeployedFleet(nodes, url)
        api = stack.enter_context(api_standin(store))
        helm = Helm(version="helm4", home=folder / "helm4")
        release = Installed(helm, copied_chart(folder / "chart"), values, store, api, pods, fleet)
        objects = release.rendered("1")
        release.apply(objects)
        stack.enter_context(ticking(pods))
        asyncio.run(started(release, ray_service(objects)["spec"]["serveConfigV2"], folder / "serve.yaml"))
        yield release


async def started(release: Installed, serve_config: str, file: Path) -> None:
    await release.fleet.deploy_config(serve_config, file)
    await release.fleet.until_reachable()
    await until_well(release.fleet, units=UNITS)
    release.pods.measure_anew()


@pytest.fixture(scope="module")
def load(installed: Installed) -> Load:
    return Load.calibrated(installed.fleet.url)


def test_new_image__control_loop_killed_in_each_drain__no_request_is_lost_and_one_node_is_short_at_a_time(
    installed: Installed, load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    async def change() -> None:
        objects = installed.rendered("2")
        rolling = asyncio.create_task(installed.job(objects))
        killing = asyncio.create_task(killed_in_each_drain(installed))
        await asyncio.sleep(1.0)
        installed.apply(objects)  # Helm makes Jobs first
        said.extend((await rolling).splitlines())
        await killing
        await fleet.until_running()
        await until_well(fleet, units=UNITS)

    fleet, said = installed.fleet, list[str]()
    before = {title: fleet.pids(title) for title in (CONTROLLER, ENGINE, GATEWAY)}
    clusters = installed.clusters()
    name = "new image, control loop killed in each drain"
    watch = through(fleet, load, change, name, capsys, units=UNITS, after_s=10.0)

    assert said[-1] == f"{NAME}: all pods are as it says"
    assert installed.pods.images() == {"muxfleet:2"}
    assert installed.clusters() == clusters
    assert installed.pods.fewest_ready == len(GROUPS) - 1
    assert watch.fewest_routable == 2, "each model moves before its units go"
    assert all(before.values())
    assert not any(fleet.pids(title) & pids for title, pids in before.items())


async def killed_in_each_drain(installed: Installed) -> None:
    """As soon as the control loop knows that the node goes."""
    fleet, pods = installed.fleet, installed.pods
    for group in GROUPS:
        while not (pods.is_draining(group) and await cordoned(fleet)):  # noqa: ASYNC110  states that set no event
            await asyncio.sleep(0.1)
        for process in fleet.found(CONTROLLER):
            process.kill()
        while pods.is_draining(group):  # noqa: ASYNC110  a state that sets no event
            await asyncio.sleep(0.5)


async def cordoned(fleet: DeployedFleet) -> bool:
    """False while nobody tells."""
    async with httpx.AsyncClient(timeout=10, trust_env=False) as http:
        try:
            response = await http.get(f"{fleet.url}/fleet")
        except httpx.HTTPError:
            return False
        return response.status_code == 200 and any(unit["cordon"] for unit in response.json()["units"])
