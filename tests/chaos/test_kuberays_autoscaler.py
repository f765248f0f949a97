"""A pool of the chart grows from one node to three and shrinks to one again, under load: Ray's own autoscaler, as
KubeRay runs it beside the head, writes into a RayCluster at a real API server what units that wait ask for. KubeRay and
kubelets are stand-ins, whose pods are raylets of this machine.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("celpy", reason="needs what `make test-k8s` installs")

from breathing_fleet import fleet_file, grows_and_shrinks
from control_plane import FOLDER, running_control_plane
from helm_runner import TOOLS, Helm, copied_chart, objects_of
from pool_pods import PoolPods, ray_variables
from ray_nodes import ray_nodes
from running_pods import ticking
from server_store import ServerStore, put_release

RAY_PORTS = 20990
pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(FOLDER is None, reason="MUXFLEET_CONTROL_PLANE names no folder: see docs/kubernetes.md"),
]


@dataclass
class PodNodes:
    """Nobody but Ray adds or removes one."""

    pods: PoolPods

    @property
    def count(self) -> int:
        return len([p for p in self.pods.pods("breathes") if "deletionTimestamp" not in p["metadata"]])

    async def follow(self, pool: Any, units: list[Any]) -> None: ...


def chart_values(file: Path) -> dict[str, Any]:
    fleet = json.loads(file.read_text())
    del fleet["gateway"]["node_labels"]  # its gateways run beside the head
    models = [model | {"source": f"org/{model['id']}"} for model in fleet["models"]]
    return {
        "fleet": fleet | {"models": models},
        "autoscaling": {"enabled": True, "idleTimeoutSeconds": 6},
        "rayAuth": {"mode": "disabled", "allowDisabled": True},
    }


@contextmanager
def rays_autoscaler(cluster: str, gcs: str, variables: Mapping[str, str], log: Path) -> Iterator[None]:
    """As the container that KubeRay puts beside the head."""
    programs = Path(sys.executable).parent
    command = [programs / "ray", "kuberay-autoscaler"]
    own = {"RAY_AUTH_MODE": "disabled", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
    environment = {**os.environ, **variables, **own, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    options = [f"--cluster-name={cluster}", "--cluster-namespace=llm", f"--gcs-address={gcs}"]
    with log.open("w") as file:
        process = subprocess.Popen([*command, *options], env=environment, stdout=file, stderr=file)
        try:
            yield
            assert process.poll() is None, log.read_text()[-3000:]
        finally:
            process.kill()
            process.wait(10)


def test_pool__follows_demand__rays_autoscaler_writes_its_pods_at_the_api_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = fleet_file(tmp_path)
    folder = tmp_path / "plane"
    folder.mkdir()
    with ExitStack() as stack:
        plane = stack.enter_context(running_control_plane(Path(str(FOLDER)), folder))
        store = ServerStore(plane)
        store.set_up(TOOLS / "crds")
        rendered = Helm(version="helm4", home=tmp_path / "helm4").template(
            copied_chart(tmp_path / "chart"), overrides=chart_values(file)
        )
        assert rendered.code == 0, rendered.errors
        put_release(store, objects_of(rendered.output))
        pods = PoolPods(store, {"machine": 0})
        pods.settle(3)
        head = ray_variables(pods.head_name(), "headgroup") | {"RAY_enable_autoscaler_v2": "1"}
        options = {"ports": RAY_PORTS, "is_scaled_by_kuberays": True, "variables_of_head": head}
        pods.ray = stack.enter_context(ray_nodes(**options))
        stack.enter_context(ticking(pods))
        (name,) = [name for kind, name in store.contents() if kind == "RayCluster"]
        variables = plane.ray_variables() | {"RAY_HEAD_POD_NAME": pods.head_name()}
        stack.enter_context(rays_autoscaler(name, f"127.0.0.1:{RAY_PORTS}", variables, tmp_path / "autoscaler.log"))
        grows_and_shrinks(file, pods.ray.environment, PodNodes(pods), capsys)
