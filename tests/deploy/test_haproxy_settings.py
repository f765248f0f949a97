import asyncio
import contextlib
import json
from pathlib import Path

import pytest
from haproxy_process import NEEDS_HAPROXY, running_haproxy

from deploy.local import haproxy
from deploy.local.free_ports import free_ports
from deploy.local.haproxy import (
    HEADER_DEADLINE_S,
    connections_settings,
    header_deadline_settings,
    header_room_settings,
    loopback_settings,
    malformed_settings,
    reader_settings,
    with_error_answers,
)

_SLOW_CLIENTS = 1000

SERVES_TEMPLATE = """frontend prometheus
    bind :9101
    mode http
frontend http_frontend
    bind {host}:8000
listen stats
  bind *:8404
  stats enable
"""


def test_settings__gateway_on_loopback__metrics_and_statistics_too() -> None:
    found = loopback_settings(SERVES_TEMPLATE.format(host="127.0.0.1"))

    assert [line.split()[1] for line in found.splitlines() if "bind" in line] == [
        "127.0.0.1:9101",
        "127.0.0.1:8000",
        "127.0.0.1:8404",
    ]


@pytest.mark.parametrize("host", ["*", "10.0.0.7"])
def test_settings__gateway_for_others__stay_as_they_are(host: str) -> None:
    text = SERVES_TEMPLATE.format(host=host)

    assert loopback_settings(text) == text


SERVES_DEFAULTS = """defaults
    mode http
    timeout connect 5s
    timeout client 3600s
    timeout server 3600s

frontend http_frontend
    bind 127.0.0.1:{port}
    http-request return status 200
"""


def test_settings__no_time_for_headers__one_is_set_once() -> None:
    found = header_deadline_settings(SERVES_DEFAULTS)

    assert found.count(f"    timeout http-request {HEADER_DEADLINE_S}s\n") == 1
    assert found.index("timeout http-request") < found.index("frontend")
    assert header_deadline_settings(found) == found


@NEEDS_HAPROXY
async def test_haproxy__a_thousand_clients_that_send_no_headers__are_closed_and_others_served(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    settings = header_deadline_settings(SERVES_DEFAULTS.format(port=port))
    settings = settings.replace(f"http-request {HEADER_DEADLINE_S}s", "http-request 2s")
    async with running_haproxy(settings, port, tmp_path):
        closed = await asyncio.gather(*(_slow_client(port) for _ in range(_SLOW_CLIENTS)), _answered(port))

    assert all(closed)


SERVES_DEAD_GATEWAY = """defaults
    mode http
    timeout connect 1s
    timeout client 60s
    timeout server 60s
    errorfile 502 {folder}/500.http
    errorfile 503 {folder}/500.http
    errorfile 504 {folder}/500.http
frontend http_frontend
    bind 127.0.0.1:{port}
    default_backend http-gateway
backend http-gateway
    server SERVE_REPLICA_gateway 127.0.0.1:{gateway}
"""

SERVES_FIRST_SETTINGS = """defaults
    mode http
    timeout connect 1s
    timeout client 60s
frontend http_frontend
    bind 127.0.0.1:{port}
    default_backend default_backend
backend default_backend
    http-request return status 404 content-type text/plain lf-string "Path '%[path]' not found."
"""


@NEEDS_HAPROXY
@pytest.mark.parametrize(("ends", "status", "code"), [("at once", 502, "gateway_lost"), ("before", 503, "no_capacity")])
async def test_haproxy__gateway_is_gone__is_told_as_the_api_tells_errors(
    tmp_path: Path, ends: str, status: int, code: str
) -> None:
    async def end_at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    gateway = await asyncio.start_server(end_at_once, "127.0.0.1", 0)
    address = gateway.sockets[0].getsockname()
    if ends == "before":
        gateway.close()
    (port,) = free_ports(1)
    (tmp_path / "500.http").write_text("HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n")
    serves = SERVES_DEAD_GATEWAY.format(folder=tmp_path, port=port, gateway=address[1])
    async with running_haproxy(with_error_answers(serves, tmp_path), port, tmp_path) as client:
        answer = await client.post("/v1/completions", json={})
    gateway.close()

    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code
    assert (answer.headers["retry-after"], answer.headers["x-should-retry"]) == ("5", "true")


@NEEDS_HAPROXY
async def test_haproxy__client_closes_its_half_before_the_answer__is_told_as_the_api_tells_errors(
    tmp_path: Path,
) -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    gateway = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    (port,) = free_ports(1)
    serves = SERVES_DEAD_GATEWAY.format(folder=tmp_path, port=port, gateway=gateway.sockets[0].getsockname()[1])
    serves = serves.replace("mode http\n", "mode http\n    option abortonclose\n    option http-buffer-request\n", 1)
    async with running_haproxy(with_error_answers(serves, tmp_path), port, tmp_path):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /v1/models HTTP/1.1\r\nhost: fleet\r\n\r\n")
        writer.write_eof()
        head, _, body = (await asyncio.wait_for(reader.read(), 60)).partition(b"\r\n\r\n")
        writer.close()
    gateway.close()

    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"x-should-retry: true" not in head
    error = json.loads(body)["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "broken_request")


@NEEDS_HAPROXY
@pytest.mark.parametrize("asked", ["CONNECT x:80", "OPTIONS *", "get /v1/models", "OPTIONS /v1/models"])
async def test_haproxy__request_that_cannot_be_read__is_told_as_the_api_tells_errors(
    tmp_path: Path, asked: str
) -> None:
    """A gateway's server says so in plain text, as it says what it has to of CORS, which stays as it is."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: 4\r\n\r\ntext")
        writer.close()

    gateway = await asyncio.start_server(refuse, "127.0.0.1", 0)
    (port,) = free_ports(1)
    serves = SERVES_DEAD_GATEWAY.format(folder=tmp_path, port=port, gateway=gateway.sockets[0].getsockname()[1])
    serves = with_error_answers(f"{serves}    http-reuse always\n", tmp_path)
    async with running_haproxy(malformed_settings(serves), port, tmp_path):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{asked} HTTP/1.1\r\nhost: x:80\r\nconnection: close\r\n\r\n".encode())
        head, _, body = (await asyncio.wait_for(reader.read(), 60)).partition(b"\r\n\r\n")
        writer.close()
    gateway.close()

    assert head.startswith(b"HTTP/1.1 400 ")
    assert body == b"text" if "OPTIONS /" in asked else json.loads(body)["error"]["code"] == "malformed_request"


@NEEDS_HAPROXY
async def test_haproxy__has_not_heard_of_gateways__says_to_ask_again_and_not_that_the_path_is_wrong(
    tmp_path: Path,
) -> None:
    (port,) = free_ports(1)
    settings = with_error_answers(SERVES_FIRST_SETTINGS.format(port=port), tmp_path)
    async with running_haproxy(settings, port, tmp_path) as client:
        answer = await client.post("/v1/completions", json={})

    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_capacity")
    assert answer.headers["x-should-retry"] == "true"


@NEEDS_HAPROXY
@pytest.mark.parametrize(
    ("server", "content_type", "status"),
    [
        ("SERVE_PROXY_ACTOR-fallback-1f", "text/plain; charset=utf-8", 503),
        ("SERVE_PROXY_ACTOR-fallback-1f", "application/json", 404),  # a gateway's, that there is no such model
        ("SERVE_REPLICA_gateway", "text/plain; charset=utf-8", 404),
    ],
)
async def test_haproxy__fleet_stops_and_serves_proxy_knows_no_gateway__says_to_ask_again_and_not_that_the_path_is_wrong(
    tmp_path: Path, server: str, content_type: str, status: int
) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = ("HTTP/1.1 404 Not Found", f"content-type: {content_type}", "content-length: 2")
        writer.write("\r\n".join((*head, "", "{}")).encode())

    behind = await asyncio.start_server(refuse, "127.0.0.1", 0)
    (port,) = free_ports(1)
    serves = SERVES_DEAD_GATEWAY.format(folder=tmp_path, port=port, gateway=behind.sockets[0].getsockname()[1])
    settings = with_error_answers(serves.replace("SERVE_REPLICA_gateway", server), tmp_path)
    async with running_haproxy(settings, port, tmp_path) as client:
        answer = await client.post("/v1/completions", json={})
    behind.close()

    assert answer.status_code == status
    if status == 503:
        assert answer.json()["error"]["code"] == "no_capacity"
        assert answer.headers["x-should-retry"] == "true"


@NEEDS_HAPROXY
async def test_haproxy__headers_longer_than_the_gateway_takes__come_to_the_gateway(tmp_path: Path) -> None:
    came = asyncio.get_running_loop().create_future()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set_result(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 2\r\n\r\n{}")

    gateway = await asyncio.start_server(refuse, "127.0.0.1", 0, limit=1 << 20)
    (port,) = free_ports(1)
    serves = SERVES_DEAD_GATEWAY.format(folder=tmp_path, port=port, gateway=gateway.sockets[0].getsockname()[1])
    settings = with_error_answers(header_room_settings(f"global\n    tune.bufsize 16384\n{serves}"), tmp_path)
    async with running_haproxy(settings, port, tmp_path) as client:
        answer = await client.get("/v1/models", headers={"x-note": "n" * 40_000})
    gateway.close()

    assert answer.status_code == 431
    assert b"n" * 40_000 in await came


def test_settings__few_files_may_be_open__haproxy_finds_how_many_connections_these_admit() -> None:
    text = "global\n    nbthread 2\n    maxconn 4096\n    stats timeout 30s\ndefaults\n    maxconn 7\n"

    assert connections_settings(text, 1 << 20) == text
    assert connections_settings(text, 4096) == text.replace("    maxconn 4096\n", "")


def test_settings__more_room_than_the_gateway_needs__is_left() -> None:
    text = "global\n    tune.bufsize 262144\n"

    assert header_room_settings(text) == text


def test_settings__error_answers__stand_in_place_of_serves(tmp_path: Path) -> None:
    found = with_error_answers(SERVES_DEAD_GATEWAY.format(folder="/serve", port=1, gateway=2), tmp_path)

    answers = [line.split() for line in found.splitlines() if "errorfile" in line]
    assert [status for _, status, _ in answers] == ["400", "408", "502", "503", "504"]
    assert all(Path(file).is_relative_to(tmp_path) for _, _, file in answers)
    assert with_error_answers(found, tmp_path) == found


def test_settings__serves_proxy_behind_the_gateways__is_asked_once_for_what_it_says(tmp_path: Path) -> None:
    serves = SERVES_DEAD_GATEWAY.format(folder="/serve", port=1, gateway=2)
    found = with_error_answers(f"{serves}    server SERVE_PROXY_ACTOR-fallback-1f 127.0.0.1:3 check backup\n", tmp_path)

    assert found.count("http-response deny") == 1
    assert with_error_answers(found, tmp_path) == found


def test_settings__patience_with_clients__is_no_longer_than_the_gateways() -> None:
    found = reader_settings(SERVES_DEFAULTS)

    assert found == SERVES_DEFAULTS.replace("timeout client 3600s", "timeout client 120s")
    assert reader_settings(found) == found
    short = "    timeout client 60s\n"
    assert reader_settings(short) == short


SERVES_BEFORE_A_GATEWAY = (
    SERVES_DEFAULTS.replace("    http-request return status 200\n", "    default_backend gateway\n")
    + """
backend gateway
    server one 127.0.0.1:{gateway}
"""
)


@NEEDS_HAPROXY
async def test_haproxy__clients_that_stop_reading__are_let_go_and_those_that_wait_are_answered(tmp_path: Path) -> None:
    port, behind = free_ports(2)
    let_go = asyncio.Semaphore(0)

    async def gateway(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        try:
            if request.startswith(b"GET /waits"):
                await asyncio.sleep(3)
                writer.write(b"2\r\nok\r\n0\r\n\r\n")
                await writer.drain()
                return
            while True:
                writer.write(b"4000\r\n" + bytes(0x4000) + b"\r\n")
                await writer.drain()
        except ConnectionError:
            let_go.release()
        finally:
            writer.close()

    settings = reader_settings(SERVES_BEFORE_A_GATEWAY.format(port=port, gateway=behind))
    settings = settings.replace("timeout client 120s", "timeout client 1s")
    async with (
        await asyncio.start_server(gateway, "127.0.0.1", behind),
        running_haproxy(settings, port, tmp_path) as http,
        asyncio.timeout(60),
    ):
        stuck = [await asyncio.open_connection("127.0.0.1", port, limit=1) for _ in range(20)]
        for _, writer in stuck:
            writer.write(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = await http.get("/waits")
        for _ in stuck:
            await let_go.acquire()
        for _, writer in stuck:
            writer.close()

    assert answer.text == "ok"


async def _slow_client(port: int) -> bool:
    """Whether the proxy, and not the client, ends the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n")
        async with asyncio.timeout(90):
            return (await reader.read()).startswith(b"HTTP/1.1 408")
    finally:
        writer.close()


async def _answered(port: int) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    line = await reader.readline()
    writer.close()
    return line.startswith(b"HTTP/1.1 200")


def _program(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_usable_proxy__auto__is_haproxy_only_where_its_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(haproxy, "program_path", lambda: tmp_path / "muxfleet-haproxy")
    found: list[str | None] = [
        _program(tmp_path / "runs", "exit 0"),
        _program(tmp_path / "fails", "exit 1"),
        str(tmp_path / "not-there"),
        None,
    ]

    chosen = []
    for binary in found:
        monkeypatch.setattr(haproxy, "_find_haproxy", lambda binary=binary: binary)
        chosen.append(haproxy.usable_proxy("auto"))

    assert chosen == ["haproxy", "python", "python", "python"]


def test_usable_proxy__without_the_program_that_shuts_its_ports__is_the_python_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(haproxy, "program_path", lambda: None)

    assert haproxy.usable_proxy("auto") == "python"


@pytest.mark.parametrize("asked", ["haproxy", "python"])
def test_usable_proxy__asked_for__is_what_was_asked_for(asked: str) -> None:
    assert haproxy.usable_proxy(asked) == asked
