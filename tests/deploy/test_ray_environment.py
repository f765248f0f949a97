"""Two fleets of one machine share no port, and no folder."""

import inspect
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from ray.serve._private import constants

from deploy.cli import main
from deploy.local.ray_environment import haproxy_files, notices_environment, ray_environment
from pdmux_actor.models.random_checkpoint import DEMO_SHAPES, write_random_checkpoint


@pytest.mark.parametrize(
    "variable",
    ["RAY_SERVE_HAPROXY_METRICS_PORT", "RAY_SERVE_HAPROXY_STATS_PORT", "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT"],
)
def test_environment__behind_haproxy__every_fixed_port_of_serve_is_one_that_was_free(variable: str) -> None:
    """The fallback proxy would listen beside another fleet's on one port: requests went to that one's models."""
    found = ray_environment(
        proxy="haproxy", auth_token="t", free_ports=(50001, 50002, 50003), haproxy=None, is_verbose=False
    )

    assert found[variable] in {"50001", "50002", "50003"}
    assert hasattr(constants, variable), "Serve has another name for it"


def test_environment__machine_has_an_http_proxy__serves_own_calls_do_not_go_through_it() -> None:
    """Nothing listens where the proxy shall be; on loopback, as a fleet of one machine."""
    found = ray_environment(proxy="haproxy", auth_token="t", free_ports=(1, 2, 3), haproxy=None, is_verbose=False)
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    code = f"import grpc; grpc.channel_ready_future(grpc.insecure_channel('127.0.0.1:{port}')).result(timeout=20)"
    proxied = {**os.environ, "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    try:
        reached = subprocess.run([sys.executable, "-c", code], env={**proxied, **found}, check=False)
    finally:
        server.stop(None)

    assert reached.returncode == 0


def test_haproxy_files__all_that_serve_would_share_between_users__lie_in_the_sessions_folder(tmp_path: Path) -> None:
    shared = re.findall(r'"(RAY_SERVE_HAPROXY_\w+)", "/tmp/haproxy-serve', inspect.getsource(constants))
    named = haproxy_files(tmp_path)

    assert set(named) == set(shared)
    assert all(Path(name).is_relative_to(tmp_path) for name in named.values())


def test_environment__proxy_is_gone__serve_takes_no_longer_than_two_seconds_to_say_so() -> None:
    """HAProxy killed was 8 s of outage when it was asked every 2 s: three bad answers in a row, then a new one."""
    found = ray_environment(proxy="haproxy", auth_token="t", free_ports=(1, 2, 3), haproxy=None, is_verbose=False)

    period_s = float(found["RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S"])

    assert period_s * constants.PROXY_HEALTH_CHECK_UNHEALTHY_THRESHOLD <= 2.0
    assert hasattr(constants, "PROXY_HEALTH_CHECK_PERIOD_S"), "Serve has another name for it"


@pytest.mark.parametrize("verb", [["up", "{file}"], ["apply", "{file}"], ["cordon", "some-unit"]])
def test_command__joins_a_cluster_that_was_there__no_notices_of_rays_fill_its_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: list[str]
) -> None:
    """On a cluster that asks for no token it was a hundred lines of tracebacks before the one that said so."""
    silencing = notices_environment(is_verbose=False)
    for name in silencing:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    write_random_checkpoint(tmp_path / "m", DEMO_SHAPES["demo-llama"], 1)
    file = tmp_path / "fleet.yaml"
    file.write_text("models: [{id: m, source: ./m}]\npools: [{name: p, device: cpu, kv_memory: 64MiB}]\n")

    with pytest.raises(SystemExit):
        main([part.format(file=file) for part in verb])

    assert "no Ray cluster answers at 127.0.0.1:9" in capsys.readouterr().err
    assert silencing == {"RAY_DEDUP_LOGS": "1", "RAY_DEDUP_LOGS_SKIP_REGEX": ".*"}
    assert {name: os.environ.get(name) for name in silencing} == silencing
