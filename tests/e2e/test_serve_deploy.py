"""The other way to a fleet: a Ray cluster of one's own, `muxfleet render` and `serve deploy`."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest
import yaml
from clients import MODELS, chat, client_of
from fleet_files import fleet_file, free_port

from deploy.serve.unit_ids import unit_id_of
from muxfleet.own_packages import PACKAGES

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

BIN = Path(sys.executable).parent
DEADLINE_S = 240.0


class Cluster:
    """`ray start --head --block`, which ends with all it started."""

    def __init__(self, folder: Path, *, started_in: Path) -> None:
        first = free_port() + 20
        gcs, dashboard, agent, metrics, client = (str(first + i) for i in range(5))
        self.dashboard = f"http://127.0.0.1:{dashboard}"
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {
            "RAY_AUTH_MODE": "disabled",
            "MUXFLEET_ALLOW_OPEN_RAY": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
            "RAY_ADDRESS": f"127.0.0.1:{gcs}",
        }
        head_environment = {k: v for k, v in self.environment.items() if k != "RAY_ADDRESS"}
        self._head = subprocess.Popen(
            [
                BIN / "ray",
                "start",
                "--head",
                "--block",
                f"--port={gcs}",
                f"--dashboard-port={dashboard}",
                f"--dashboard-agent-listen-port={agent}",
                f"--metrics-export-port={metrics}",
                f"--ray-client-server-port={client}",
                "--num-cpus=8",
                "--object-store-memory=100000000",
                f"--temp-dir={folder}",
            ],
            cwd=started_in,
            env=head_environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def serve(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(BIN / "serve"), arguments[0], "--address", self.dashboard, *arguments[1:]]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60, check=False)

    def stop(self) -> None:
        processes = [psutil.Process(self._head.pid), *psutil.Process(self._head.pid).children(recursive=True)]
        self._head.terminate()
        _, alive = psutil.wait_procs(processes, timeout=20)
        for process in alive:
            process.kill()
        psutil.wait_procs(alive, timeout=10)


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    started_in = tmp_path_factory.mktemp("user")
    for name in PACKAGES:  # Ray puts this folder first on the path of the workers that import what `serve deploy` names
        (started_in / f"{name}.py").write_text(f"raise RuntimeError('{name}.py of the user was imported')\n")
    # Ray's sockets lie in the folder, their paths have at most 107 bytes: pytest's own is too long beside xdist.
    with tempfile.TemporaryDirectory(prefix="mux-ray-", ignore_cleanup_errors=True) as folder:
        cluster = Cluster(Path(folder), started_in=started_in)
        try:
            yield cluster
        finally:
            cluster.stop()


def test_render__deployed_with_serve__is_running_and_answers(cluster: Cluster, tmp_path: Path) -> None:
    file = fleet_file(tmp_path, proxy="python")
    rendered = tmp_path / "serve.yaml"
    config = subprocess.run(
        [BIN / "muxfleet", "render", file], env=cluster.environment, capture_output=True, text=True, check=True
    )
    rendered.write_text(config.stdout)
    port = yaml.safe_load(config.stdout)["http_options"]["port"]

    wait_for(lambda: cluster.serve("deploy", str(rendered)).returncode == 0, "serve deploy")
    wait_for(lambda: running_applications(cluster) == {"units-laptop", "control", "gateway"}, "serve status")
    client = client_of(f"http://127.0.0.1:{port}")
    wait_for(lambda: len(client.models.list().data) == len(MODELS), "the gateway's view")

    assert all(chat(client, model, max_tokens=8) for model in MODELS)
    fleet = httpx.get(f"http://127.0.0.1:{port}/fleet", trust_env=False).json()
    assert {unit["report"]["unit_id"] for unit in fleet["units"]} == units_of_serve(cluster, "laptop")
    second = subprocess.run(
        [BIN / "muxfleet", "up", file], env=cluster.environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert second.returncode == 1
    assert second.stderr == (
        "muxfleet: the fleet did not start: Serve already runs control, gateway, units-laptop in this cluster; "
        "use `muxfleet render FILE` and `serve deploy` to change a running cluster\n"
    )


def running_applications(cluster: Cluster) -> set[str]:
    status = cluster.serve("status")
    if status.returncode != 0:
        return set()
    applications = yaml.safe_load(status.stdout)["applications"]
    failed = {name: app["message"] for name, app in applications.items() if app["status"] == "DEPLOY_FAILED"}
    assert not failed
    return {name for name, app in applications.items() if app["status"] == "RUNNING"}


def units_of_serve(cluster: Cluster, pool: str) -> set[str]:
    """By what the control loop finds the replica of a unit."""
    told = httpx.get(f"{cluster.dashboard}/api/serve/applications/", trust_env=False).json()["applications"]
    (deployment,) = told[f"units-{pool}"]["deployments"].values()
    return {unit_id_of(pool, replica["replica_id"]) for replica in deployment["replicas"]}


def wait_for(is_done: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + DEADLINE_S
    while not is_done():
        assert time.monotonic() < until_s, f"{what}: not in {DEADLINE_S:g} s"
        time.sleep(1.0)
