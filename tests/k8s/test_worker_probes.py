"""Probes of worker pods: the commands themselves, against servers that answer as Ray's do."""

import http.server
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helm_runner import Helm, objects_of, ray_service

pytestmark = pytest.mark.k8s

GATEWAY_PORT = 8123
AGENT = "localhost:52365"
NO_PROXY_SERVER = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
"""A corporate proxy, which cannot reach a pod's loopback: nobody is there."""


@contextmanager
def answering(answers: Mapping[str, bytes]) -> Iterator[int]:
    """By path; others get 503."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path in answers else 503)
            self.end_headers()
            self.wfile.write(answers.get(self.path, b"starting"))

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def worker(helm4: Helm, chart: Path) -> dict[str, Any]:
    fleet = {"models": [{"id": "a", "source": "org/a"}], "gateway": {"port": GATEWAY_PORT}}
    outcome = helm4.template(chart, overrides={"fleet": fleet})
    assert outcome.code == 0, outcome.errors
    (group,) = ray_service(objects_of(outcome.output))["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    return dict(group["template"]["spec"]["containers"][0])


def passes(probe: Mapping[str, Any], agent: int, gateway: int) -> bool:
    *shell, command = probe["exec"]["command"]
    assert AGENT in command
    here = command.replace(AGENT, f"localhost:{agent}").replace(f"localhost:{GATEWAY_PORT}", f"localhost:{gateway}")
    return subprocess.run([*shell, here], env=os.environ | NO_PROXY_SERVER, timeout=60, check=False).returncode == 0


RAYLET, PROXY = {"/api/local_raylet_healthz": b"success"}, {"/-/healthz": b"success"}


@pytest.mark.parametrize(
    ("agent", "gateway", "is_ready"), [(RAYLET, PROXY, True), (RAYLET, {}, False), ({}, PROXY, False)], ids=str
)
def test_probes__behind_a_corporate_proxy__ask_their_own_pod(
    worker: dict[str, Any], agent: dict[str, bytes], gateway: dict[str, bytes], is_ready: bool
) -> None:
    with answering(agent) as agent_port, answering(gateway) as gateway_port:
        assert passes(worker["startupProbe"], agent_port, gateway_port) is bool(agent)
        assert passes(worker["readinessProbe"], agent_port, gateway_port) is is_ready


def test_readiness__of_a_busy_worker__is_waited_for_and_asked_again(worker: dict[str, Any]) -> None:
    """One slow answer of each of them at the same time would leave the Service without an address."""
    probe = worker["readinessProbe"]

    assert probe["failureThreshold"] > 1
    assert probe["timeoutSeconds"] >= 2 * 4
    assert "livenessProbe" not in worker, "KubeRay's, which gives up after ten minutes, is patient enough"
