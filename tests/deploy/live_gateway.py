"""A gateway that tells consoles what a test says, on a real server in a thread of its own."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import uvicorn

from router.http.app import create_app
from router.http.live_routes import LiveSources
from router.serving.gateway import Gateway


async def no_answer(*asked: object) -> None:
    """Nobody answers."""


@contextlib.contextmanager
def live_gateway(live: LiveSources, gateway: Gateway | None = None, **options) -> Iterator[str]:
    """`options` are create_app's. Yields its address."""
    started = threading.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets=None) -> None:
            await super().startup(sockets)
            started.set()

    app = create_app(gateway or Gateway(), live=live, **options)
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", timeout_graceful_shutdown=1)
    server = Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    try:
        assert started.wait(60)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
