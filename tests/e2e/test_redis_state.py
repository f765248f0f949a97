"""What Ray's store keeps outlives the loss of the head where Redis is behind it, as the chart has it, and else not."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

PORTS = 20671
START_S = 90.0
REDIS = shutil.which("redis-server")
DRIVER = """
import sys, ray
from deploy.state.cluster_store import ClusterStore
ray.init(address=sys.argv[1], log_to_driver=False)
store = ClusterStore("fleet")
if len(sys.argv) > 2:
    store.write("control loop", sys.argv[2].encode())
print(store.read("control loop"), ClusterStore("other").read("control loop"))
"""
pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[str]:
    if REDIS is None:
        pytest.skip("needs redis-server: apt install redis-server")
    port = PORTS + 9
    process = subprocess.Popen(
        [REDIS, f"--port {port}", "--bind 127.0.0.1", "--save ''", f"--dir {tmp_path}"], stdout=subprocess.DEVNULL
    )
    try:
        _wait_for(port)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(10)


@contextmanager
def head(folder: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Ends without a word, as a pod whose node is gone."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    ports = {"port": 0, "dashboard-port": 1, "dashboard-agent-listen-port": 2, "metrics-export-port": 3}
    ports |= {"ray-client-server-port": 4, "runtime-env-agent-port": 5, "dashboard-agent-grpc-port": 6}
    options = [f"--{name}={PORTS + place}" for name, place in ports.items()]
    process = subprocess.Popen(
        [
            *(Path(sys.executable).parent / "ray", "start", "--head", "--block", "--include-dashboard=false"),
            *(f"--temp-dir={folder}", "--num-cpus=1", "--object-store-memory=100000000", *options),
        ],
        env={**clean, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        _wait_for(PORTS)
        yield f"127.0.0.1:{PORTS}"
    finally:
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(process.pid)
            for each in [*root.children(recursive=True), root]:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
        process.wait(10)


def told(address: str, *document: str) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {"RAY_AUTH_MODE": "disabled"}
    command = [sys.executable, "-c", DRIVER, address, *document]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_S, env=clean, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def _wait_for(port: int) -> None:
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return
        time.sleep(0.1)
    raise AssertionError(f"nothing answers on port {port}")


@pytest.mark.parametrize("has_redis", [True, False], ids=["redis", "no redis"])
def test_document__head_lost_and_started_again__is_there_where_redis_keeps_it(
    request: pytest.FixtureRequest, has_redis: bool
) -> None:
    environment = {"RAY_REDIS_ADDRESS": request.getfixturevalue("redis")} if has_redis else {}
    folders = [Path(f"/tmp/mux-redis-{os.getpid()}-{i}") for i in range(2)]  # paths of sockets are short
    try:
        with head(folders[0], environment) as address:
            written = told(address, "plan")
        with head(folders[1], environment) as address:
            again = told(address)
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)

    assert written == "b'plan' None", "the other fleet's is its own"
    assert again == ("b'plan' None" if has_redis else "None None")
