"""Every connection between two machines is broken by the kernel when the other one is gone without a word."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import psutil
import pytest

from deploy.serve.lease_server import LeaseServer
from pdmux_actor.lease import Lease, UnitReport
from pdmux_actor.serving.control_link import ControlStream
from pdmux_actor.serving.gateway_connection import StreamSettings
from pdmux_actor.serving.kv_transfers import KvSource
from pdmux_actor.serving.stream_server import StreamServer
from router.transport.frame_connection import SilenceLimits
from router.transport.unit_client import FrameStreamClient

TOKEN = "secret"


class NoStreams:
    """Implements StreamHandler for connections on which nothing is asked."""

    def is_stalled(self) -> bool:
        return False


def no_lease(report: UnitReport) -> Lease:
    raise AssertionError("no heartbeat was sent")


@asynccontextmanager
async def listening_unit() -> AsyncIterator[str]:
    server = StreamServer(StreamSettings(unit_id="u"), NoStreams())
    port = await server.start("127.0.0.1")
    server.set_token(TOKEN)
    yield f"127.0.0.1:{port}"
    await server.stop()


@asynccontextmanager
async def heartbeats() -> AsyncIterator[str]:
    server = LeaseServer(TOKEN, no_lease, lambda: "127.0.0.1")
    address = await server.address()
    stream = await ControlStream.open(address)
    yield address.endpoint
    stream.close()
    server.close()


@asynccontextmanager
async def requests(lost_s: float = 10.0) -> AsyncIterator[str]:
    async with listening_unit() as endpoint:
        client = FrameStreamClient(endpoint, TOKEN, SilenceLimits(lost_s=lost_s))
        await client._connect_once()
        yield endpoint
        await client.close()


@asynccontextmanager
async def fetched_kv() -> AsyncIterator[str]:
    async with listening_unit() as endpoint, KvSource.opened(endpoint, TOKEN):
        yield endpoint


def kernel_timeouts_ms(endpoint: str) -> tuple[list[int], list[int]]:
    """Of this process's connections from and to an address that it listens on."""
    host, _, port = endpoint.rpartition(":")
    opened, accepted = [], []
    for found in psutil.Process().net_connections(kind="tcp4"):
        if found.status == psutil.CONN_ESTABLISHED and (host, int(port)) in (found.laddr, found.raddr):
            with socket.socket(fileno=os.dup(found.fd)) as connection:
                timeout_ms = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
                is_probed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            (accepted if found.laddr == (host, int(port)) else opened).append(timeout_ms if is_probed else 0)
    return opened, accepted


async def accepted_and_opened(endpoint: str) -> tuple[list[int], list[int]]:
    """As soon as the other end has taken the connection."""
    for _ in range(1000):
        if all(told := kernel_timeouts_ms(endpoint)) and 0 not in told[1]:
            break
        await asyncio.sleep(0.01)
    return told


@pytest.mark.parametrize("connected", [heartbeats, requests, fetched_kv])
async def test_connection__either_end__does_not_outlive_a_peer_that_vanished(
    connected: Callable[[], AbstractAsyncContextManager[str]],
) -> None:
    async with connected() as endpoint:
        assert await accepted_and_opened(endpoint) == ([20_000], [20_000])


async def test_gateway__unit_may_be_silent_for_long__connection_lives_so_long() -> None:
    async with requests(lost_s=60.0) as endpoint:
        assert (await accepted_and_opened(endpoint))[0] == [60_000]
