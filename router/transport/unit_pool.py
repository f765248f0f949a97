"""Connections to the units of the current view."""

import asyncio

from router.transport.frame_connection import SilenceLimits
from router.transport.unit_client import FrameStreamClient, UnitTransport
from router.view import FleetView


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

    def transport(self, endpoint: str) -> UnitTransport:
        client = self._clients.get(endpoint)
        if client is None:
            client = self._clients[endpoint] = FrameStreamClient(endpoint, self._token, self._silence)
        return client

    def unreachable(self) -> frozenset[str]:
        """Endpoints that could not be reached a moment ago, or whose units make no progress."""
        return frozenset(endpoint for endpoint, client in self._clients.items() if not client.reachable)

    async def close(self) -> None:
        await asyncio.gather(*(client.close() for client in self._clients.values()), *self._closing)
        self._clients.clear()
