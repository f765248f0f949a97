"""Connections whose peer is gone without a word."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from pdmux_actor.serving.connection_heartbeat import bound_silence


def options_of(connection: socket.socket) -> dict[str, int]:
    names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
    told = {name: connection.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names}
    return {**told, "SO_KEEPALIVE": connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)}


@pytest.fixture
async def writer() -> AsyncIterator[asyncio.StreamWriter]:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    yield writer
    writer.close()
    server.close()


async def test_bound_silence__any_connection__is_probed_and_broken_by_the_kernel(writer: asyncio.StreamWriter) -> None:
    bound_silence(writer.transport)

    told = options_of(writer.get_extra_info("socket"))
    assert told == {
        "SO_KEEPALIVE": 1,
        "TCP_KEEPIDLE": 5,
        "TCP_KEEPINTVL": 5,
        "TCP_KEEPCNT": 3,
        "TCP_USER_TIMEOUT": 20_000,
    }


@pytest.mark.parametrize("lost_s", [3600.0, 1e18, float("inf")])
async def test_bound_silence__longer_than_the_kernel_takes__is_as_long_as_it_does(
    writer: asyncio.StreamWriter, lost_s: float
) -> None:
    bound_silence(writer.transport, lost_s=lost_s)

    told = options_of(writer.get_extra_info("socket"))
    assert (told["SO_KEEPALIVE"], told["TCP_USER_TIMEOUT"]) == (1, 600_000)


async def test_bound_silence__connection_within_a_machine__is_left_alone() -> None:
    ours, theirs = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=ours)

    bound_silence(writer.transport)

    assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0
    writer.close()
    theirs.close()
