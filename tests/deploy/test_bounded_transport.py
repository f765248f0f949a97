"""A server that talks without end is not listened to without end."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from deploy.bounded_transport import bounded_get
from deploy.errors import FleetUnreachable
from deploy.inspection.fleet_report import fleet_report
from deploy.inspection.live_events import FollowedFleet
from deploy.inspection.served_models import served_models

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"


@contextlib.contextmanager
def server(talk: Callable[[socket.socket], None]) -> Iterator[str]:
    """Does that to its first connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(1 << 16)
                connection.sendall(HEAD)
                talk(connection)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def drip(connection: socket.socket) -> None:
    connection.sendall(b"\r\n")
    while True:
        connection.sendall(b": x\n")
        time.sleep(0.05)


def flood(connection: socket.socket) -> None:
    connection.sendall(b"\r\n")
    while True:
        connection.sendall(bytes(1 << 20))


def claim_gzip(connection: socket.socket) -> None:
    connection.sendall(b"content-encoding: gzip\r\ncontent-length: 5\r\n\r\nhello")


@pytest.mark.parametrize(("talk", "timeout_s"), [(drip, 0.5), (flood, 60.0)])
def test_get__answer_without_end__is_given_up(talk: Callable[[socket.socket], None], timeout_s: float) -> None:
    began_s = time.monotonic()

    with server(talk) as url, pytest.raises(httpx.ReadTimeout, match="no end"):
        bounded_get(url, timeout_s=timeout_s, headers={})

    assert time.monotonic() - began_s < 30


def test_get__answer_with_an_end__is_whole() -> None:
    with server(lambda connection: connection.sendall(b"\r\nhello")) as url:
        assert bounded_get(url, timeout_s=10, headers={}).text == "hello"


@pytest.mark.parametrize(
    ("ask", "talk", "reason"),
    [
        (served_models, drip, "no end"),
        (served_models, claim_gzip, "decompressing"),
        (fleet_report, claim_gzip, "decompressing"),
    ],
)
def test_verbs__server_is_no_fleet_and_says_nonsense__they_say_so(
    ask: Callable[[str], object], talk: Callable[[socket.socket], None], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deploy.inspection.served_models._TIMEOUT_S", 0.5)

    with server(talk) as url, pytest.raises(FleetUnreachable, match=reason):
        ask(url)


def test_top__stream_of_comments__is_no_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploy.inspection.live_events._TIMEOUT_S", 1.0)

    with server(drip) as url, pytest.raises(FleetUnreachable, match="tells of no fleet; correct the URL"):
        FollowedFleet(url)
