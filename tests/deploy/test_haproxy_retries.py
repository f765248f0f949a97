import asyncio
import re
from pathlib import Path

import httpx
import pytest
from haproxy_process import NEEDS_HAPROXY, running_haproxy

from deploy.local.free_ports import free_ports
from deploy.local.haproxy import (
    HEADER_DEADLINE_S,
    header_deadline_settings,
    header_room_settings,
    retry_settings,
    with_error_answers,
)

SERVES_GATEWAYS = """defaults
    mode http
    timeout connect 1s
    timeout client 60s
    timeout server 60s
    option redispatch 1
    retry-on conn-failure
frontend http_frontend
    bind 127.0.0.1:{port}
    default_backend http-gateway
backend http-gateway
    http-reuse always
    balance roundrobin
    server SERVE_REPLICA_first 127.0.0.1:{first}
    server SERVE_REPLICA_second 127.0.0.1:{second}
"""


@NEEDS_HAPROXY
@pytest.mark.parametrize(
    ("path", "is_repeated"), [("/v1/chat/completions", True), ("/v1/batches", False), ("/v1/files", False)]
)
async def test_haproxy__gateway_ends_before_it_answers__another_is_asked_but_for_what_is_kept(
    tmp_path: Path, path: str, is_repeated: bool
) -> None:
    asked: list[bytes] = []

    async def answer_once_then_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Over one connection: the second request finds a gateway that ends."""
        asked.append(await _one_request(reader))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        asked.append(await _one_request(reader))
        writer.close()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            asked.append(await _one_request(reader))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

    first = await asyncio.start_server(answer_once_then_end, "127.0.0.1", 0)
    second = await asyncio.start_server(answer, "127.0.0.1", 0)
    (port,) = free_ports(1)
    ports = {"first": first.sockets[0].getsockname()[1], "second": second.sockets[0].getsockname()[1]}
    serves = f"global\n    tune.bufsize 16384\n{SERVES_GATEWAYS.format(port=port, **ports)}"
    async with running_haproxy(retry_settings(header_room_settings(serves)), port, tmp_path) as client:
        for _ in range(2):  # each gateway has one connection now
            assert (await client.get("/v1/models")).status_code == 200
        asked.clear()
        answers = [await _status(client, path) for _ in range(2)]
    first.close()
    second.close()

    # Over a connection that had an answer before, HAProxy closes without one.
    assert sorted(answers) == ([200, 200] if is_repeated else [0, 200])
    assert len(asked) == (3 if is_repeated else 2)
    assert len(set(asked)) == 1


@NEEDS_HAPROXY
@pytest.mark.parametrize(("dead", "ended"), [(0, 3), (1, 2)])
async def test_haproxy__request_ends_every_gateway_that_it_comes_to__comes_to_three_at_most(
    tmp_path: Path, dead: int, ended: int
) -> None:
    """Of five; those that are dead already are asked in vain."""
    asked: list[bytes] = []

    async def end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await _one_request(reader))
        writer.close()

    (port, *nobody) = free_ports(1 + dead)
    living = [await asyncio.start_server(end, "127.0.0.1", 0) for _ in range(5 - dead)]
    ports = [*nobody, *(server.sockets[0].getsockname()[1] for server in living)]
    serves = f"global\n    tune.bufsize 16384\n{SERVES_GATEWAYS.format(port=port, first=ports[0], second=ports[1])}"
    serves += "".join(f"    server SERVE_REPLICA_{p} 127.0.0.1:{p}\n" for p in ports[2:])
    async with running_haproxy(retry_settings(header_room_settings(serves)), port, tmp_path) as client:
        status = await _status(client, "/v1/completions")
    for server in living:
        server.close()

    assert status in (0, 502, 503)
    assert len(asked) == ended


@NEEDS_HAPROXY
async def test_haproxy__short_body_does_not_come__is_told_so_in_the_apis_shape(tmp_path: Path) -> None:
    (port, nobody) = free_ports(2)
    settings = SERVES_GATEWAYS.format(port=port, first=nobody, second=nobody)
    settings = header_deadline_settings(retry_settings(settings))
    settings = settings.replace(f"http-request {HEADER_DEADLINE_S}s", "http-request 1s")
    async with running_haproxy(with_error_answers(settings, tmp_path), port, tmp_path):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: h\r\ncontent-length: 100\r\n\r\n{")
        answer = await asyncio.wait_for(reader.read(), 60)
        writer.close()

    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"or its body did not arrive in time" in answer


async def _status(client: httpx.AsyncClient, path: str) -> int:
    try:
        return (await client.post(path, json={"prompt": "p" * 20_000})).status_code
    except httpx.RemoteProtocolError:
        return 0


async def _one_request(reader: asyncio.StreamReader) -> bytes:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    found = re.search(rb"content-length: (\d+)", head)
    return await reader.readexactly(int(found[1])) if found else b""


def test_settings__retries__are_set_once_and_of_serves_defaults_only() -> None:
    found = retry_settings(SERVES_GATEWAYS)

    assert found.count("retry-on conn-failure empty-response") == 1
    assert found.count("disable-l7-retry") == 1
    assert "retries 5" in retry_settings(SERVES_GATEWAYS.replace("    retry-on", "    retries 5\n    retry-on"))
    assert retry_settings(found) == found
    assert retry_settings("defaults\n    http-reuse safe\n") == "defaults\n    http-reuse safe\n"
