"""The same fleet behind HAProxy, with Serve's throughput flags: the recommended mode."""

import asyncio
import json
import socket
import time
from pathlib import Path

import httpx
import pytest
from clients import MODELS, chat, client_of, endings, streamed_chat
from fleet_process import FleetProcess, assert_all_on_loopback

from deploy.cli import main
from deploy.local.demo_fleet import generated_trace
from traces.outcome import Ending

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]


@pytest.mark.parametrize("model", MODELS)
def test_haproxy__chat__streamed_and_whole_are_the_same_text(haproxy_fleet: FleetProcess, model: str) -> None:
    client = client_of(haproxy_fleet.url)

    whole = chat(client, model, max_tokens=40)

    assert whole
    assert streamed_chat(client, model, max_tokens=40) == whole


def test_haproxy__gateway_on_loopback__no_socket_is_reached_from_elsewhere(haproxy_fleet: FleetProcess) -> None:
    assert any("haproxy" in command for command in haproxy_fleet.listening().values())
    assert_all_on_loopback(haproxy_fleet)


def test_haproxy__replay__answers_everything(haproxy_fleet: FleetProcess) -> None:
    counts = asyncio.run(endings(generated_trace(requests=60, seed=3), haproxy_fleet.url))

    assert counts[Ending.FINISHED] == 60, counts


def test_haproxy__trace_decisions__reach_the_unit(haproxy_fleet: FleetProcess, tmp_path: Path) -> None:
    """Serve's handles behave differently under the throughput flags."""
    chat(client_of(haproxy_fleet.url), MODELS[0], max_tokens=8)
    file = tmp_path / "decisions.json"

    with pytest.raises(SystemExit) as exited:
        main(["trace-decisions", haproxy_fleet.url, "--last", "5", "--json", str(file)])

    assert exited.value.code == 0
    (unit,) = json.loads(file.read_text())["units"].values()
    assert len(unit["decisions"]) == 5


def test_haproxy__client_leaves_before_the_first_byte__sequence_is_freed(haproxy_fleet: FleetProcess) -> None:
    """Headers and body in packets of their own, as httpx and the SDKs send them."""
    url = httpx.URL(haproxy_fleet.url)
    body = json.dumps({"model": MODELS[2], "prompt": "x", "max_tokens": 3000, "ignore_eos": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    finished = haproxy_fleet.answers()
    with socket.create_connection((url.host, url.port or 80)) as connection:
        connection.sendall(f"{head}\r\n\r\n".encode())
        time.sleep(0.1)
        connection.sendall(body)
        haproxy_fleet.wait_for_running(1)

    haproxy_fleet.wait_for_running(0)
    assert haproxy_fleet.answers() == finished, "it ran to its end"


def test_haproxy__engine_killed_while_streaming__stream_goes_on(haproxy_fleet: FleetProcess) -> None:
    client = client_of(haproxy_fleet.url)
    expected = chat(client, MODELS[1], max_tokens=300)
    engine = haproxy_fleet.engine()

    def kill_once(chunks: int) -> None:
        if chunks == 20:
            engine.kill()

    assert streamed_chat(client, MODELS[1], max_tokens=300, on_chunk=kill_once) == expected
    haproxy_fleet.wait_until_replaced(engine, haproxy_fleet.engine)
