"""Accepts gateways' connections: the unit's TCP server for frames.py."""

import asyncio

from pdmux_actor.serving.gateway_connection import GatewayConnection, StreamHandler, StreamSettings

_CLOSE_TIMEOUT_S = 1.0


class StreamServer:
    """Takes no gateway before `set_token`. A new token applies to new connections."""

    def __init__(self, settings: StreamSettings, handler: StreamHandler) -> None:
        self._settings = settings
        self._handler = handler
        self._token: str | None = None
        self._server: asyncio.Server | None = None
        self._connections: set[GatewayConnection] = set()
        self._all_lost = asyncio.Event()

    def set_token(self, token: str) -> None:
        self._token = token

    async def start(self, host: str, port: int = 0) -> int:
        """Returns the port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connection, host, port)
        bound_port: int = self._server.sockets[0].getsockname()[1]
        return bound_port

    async def stop(self) -> None:
        """Sends what is queued and closes every connection."""
        if self._server is None:
            return
        self._server.close()
        self._all_lost.clear()
        for connection in tuple(self._connections):
            connection.close()
        if self._connections:
            try:
                await asyncio.wait_for(self._all_lost.wait(), _CLOSE_TIMEOUT_S)
            except TimeoutError:  # a gateway that does not read
                for connection in tuple(self._connections):
                    connection.abort()

    def _connection(self) -> GatewayConnection:
        connection = GatewayConnection(self._settings, self._handler, token=lambda: self._token, on_lost=self._forget)
        self._connections.add(connection)
        return connection

    def _forget(self, connection: GatewayConnection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._all_lost.set()
