"""`muxfleet up` as a supervisor: it says what died of what it runs on, and ends when told to. The tests share a fleet,
in this order.
"""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from clients import MODELS, chat, client_of
from fleet_files import fleet_file
from fleet_process import FleetProcess

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

STOP_S = 8.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("supervised")


@pytest.fixture(scope="module")
def supervised(folder: Path) -> Iterator[FleetProcess]:
    file = fleet_file(folder, proxy="python")
    process = FleetProcess(file, options=["--restart", "--stop-wait", str(STOP_S)])
    try:
        process.wait_until_serving()
        yield process
    finally:
        process.kill()


def test_proxy_killed__serve_starts_another__both_are_said(supervised: FleetProcess) -> None:
    proxy = supervised.process(title="ray::ProxyActor")

    proxy.kill()

    assert f"process {proxy.pid}" in supervised.wait_for_line("Serve's proxy")
    supervised.wait_for_line("Serve's proxy runs again")


def test_dashboard_agent_killed__restart__fleet_serves_again_as_last_applied(
    supervised: FleetProcess, folder: Path
) -> None:
    changed = folder / "changed.yaml"
    changed.write_text((folder / "demo.yaml").read_text().replace("policy: mux\n", "policy: muxwise\n"))
    applied = subprocess.run(supervised.command("apply", str(changed)), timeout=120, capture_output=True, text=True)
    assert applied.returncode == 0, applied.stdout + applied.stderr
    agent, url = supervised.process(title="ray::DashboardAgent"), supervised.url
    session = supervised.session_folder()

    agent.kill()

    assert "Ray's" in supervised.wait_for_line("the fleet is lost")
    supervised.wait_until_serving()
    assert supervised.url == url
    assert json.loads(httpx.get(f"{url}/fleet", timeout=30, trust_env=False).text)["policy"] == "muxwise"
    assert chat(client_of(url), MODELS[0], max_tokens=8)
    assert not session.exists()


def test_gcs_killed__restart__fleet_serves_again(supervised: FleetProcess) -> None:
    supervised.process(title="/gcs/gcs_server").kill()

    assert "Ray's GCS" in supervised.wait_for_line("the fleet is lost")
    supervised.wait_until_serving()
    assert chat(client_of(supervised.url), MODELS[0], max_tokens=8)


def test_raylet_stands__ctrl_c__all_is_ended_by_force(supervised: FleetProcess) -> None:
    session = supervised.session_folder()
    supervised.process(title="/raylet/raylet").send_signal(signal.SIGSTOP)

    code = supervised.stop(signal.SIGINT)  # fails if a process is left

    assert (code, session.exists()) == (1, False)
    assert f"stopping takes longer than {STOP_S:g} s" in supervised.output
