"""The gateway's ends of units' frame streams."""

import asyncio
import logging

from pdmux_actor.errors import StreamRefused, UnitLost
from pdmux_actor.messages import GenerateRequest
from router.transport.frame_connection import DeltaStream, FrameConnection, SilenceLimits
from router.view import FleetView

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 3.0
FIRST_BACKOFF_S = 0.1
LAST_BACKOFF_S = 5.0


class UnitUnreachable(UnitLost):
    """No request left the gateway: it is not to blame for the unit's state."""


class FrameStreamClient:
    """One multiplexed connection to a unit, opened when first needed and again, with backoff, when it broke."""

    def __init__(self, endpoint: str, token: str, silence: SilenceLimits | None = None) -> None:
        self._endpoint = endpoint
        self._silence = silence or SilenceLimits()
        self.token = token
        self._connection: FrameConnection | None = None
        self._connecting: asyncio.Task[FrameConnection] | None = None
        self._backoff_s = FIRST_BACKOFF_S
        self._retry_at_s = 0.0

    @property
    def reachable(self) -> bool:
        """False while the client keeps away from a unit that it could not reach, or that makes no progress."""
        connection = self._connection
        if connection is not None and not connection.lost and connection.stall is not None:
            return False
        return asyncio.get_running_loop().time() >= self._retry_at_s

    @property
    def idle(self) -> bool:
        return self._connecting is None and (self._connection is None or self._connection.num_streams == 0)

    async def open(self, request: GenerateRequest) -> DeltaStream:
        """Sends the request; to close the stream before its end cancels it on the unit.

        Raises:
            UnitUnreachable: the unit could not be connected to.
            UnitLost: the unit went away or went silent.
            StreamRefused: the unit does not let this gateway in.
        """
        connection = self._connection
        if connection is None or connection.lost:
            connection = await self._connect_once()
        return await connection.open_stream(request)

    def end(self) -> None:
        if self._connection is not None:
            self._connection.close("the gateway ends")

    async def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        if self._connection is not None:
            self._connection.close("the gateway closed the connection")

    async def _connect_once(self) -> FrameConnection:
        """All who wait share one attempt."""
        if asyncio.get_running_loop().time() < self._retry_at_s:
            reason = f"not reachable, next attempt within {self._backoff_s:.1f} s"
            raise UnitUnreachable(endpoint=self._endpoint, reason=reason)
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())
            self._connecting.add_done_callback(self._connected)
        return await asyncio.shield(self._connecting)

    def _connected(self, attempt: asyncio.Task[FrameConnection]) -> None:
        self._connecting = None
        if attempt.cancelled():
            return
        if attempt.exception() is None:
            self._backoff_s = FIRST_BACKOFF_S
            return
        self._retry_at_s = asyncio.get_running_loop().time() + self._backoff_s
        self._backoff_s = min(LAST_BACKOFF_S, self._backoff_s * 2)

    async def _connect(self) -> FrameConnection:
        loop = asyncio.get_running_loop()
        host, _, port = self._endpoint.rpartition(":")
        connection = FrameConnection(endpoint=self._endpoint, token=self.token, silence=self._silence)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await loop.create_connection(lambda: connection, host.strip("[]"), int(port))
                unit_id = await connection.welcomed
        except (OSError, TimeoutError) as error:
            connection.close("no welcome")
            raise UnitUnreachable(endpoint=self._endpoint, reason=f"cannot connect: {error or 'timed out'}") from error
        except UnitLost as error:
            raise UnitUnreachable(endpoint=self._endpoint, reason=error.reason) from error
        except (StreamRefused, asyncio.CancelledError):
            connection.close("no welcome")
            raise
        logger.info("connected to unit", extra={"unit": unit_id, "endpoint": self._endpoint})
        self._connection = connection
        return connection


class UnitPool:
    """One client per endpoint that requests went to.

    A client whose unit left the view is closed once it carries no stream: a unit that drains finishes its answers, and
    a registration that flickers cuts nothing.
    """

    def __init__(self, silence: SilenceLimits | None = None) -> None:
        self._silence = silence
        self._clients: dict[str, FrameStreamClient] = {}
        self._token = ""
        self._closing: set[asyncio.Task[None]] = set()
        self.is_ended = False

    def update(self, view: FleetView) -> None:
        """Called from the event loop."""
        self._token = view.stream_token
        listed = {unit.report.endpoint for unit in view.units}
        for endpoint, client in list(self._clients.items()):
            client.token = view.stream_token
            if endpoint not in listed and client.idle:
                del self._clients[endpoint]
                task = asyncio.create_task(client.close())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)

    async def open(self, endpoint: str, request: GenerateRequest) -> DeltaStream:
        """Raises as `FrameStreamClient.open`."""
        if self.is_ended:
            raise UnitUnreachable(endpoint=endpoint, reason="the gateway ends")
        client = self._clients.get(endpoint)
        if client is None:
            client = self._clients[endpoint] = FrameStreamClient(endpoint, self._token, self._silence)
        return await client.open(request)

    def unreachable(self) -> frozenset[str]:
        """Endpoints that could not be reached a moment ago, or whose units make no progress."""
        return frozenset(endpoint for endpoint, client in self._clients.items() if not client.reachable)

    def end(self) -> None:
        """Breaks all streams off, and opens none any more."""
        self.is_ended = True
        for client in self._clients.values():
            client.end()

    async def close(self) -> None:
        await asyncio.gather(*(client.close() for client in self._clients.values()), *self._closing)
        self._clients.clear()
