"""A gateway on a real server, for the tests of its HTTP."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import uvicorn
from fake_unit import FakeUnit, eventually, fleet_view

from router.access.api_keys import KeyEntry, KeyRing, make_key
from router.batches.batch_settings import BatchSettings
from router.http.app import create_app
from router.serving.gateway import Gateway
from router.telemetry.tracing import RequestSpans
from router.text.calls import LoadTokenizer, TextAnswer, TextCall
from router.text.worker import TextWorker


class InlineText:
    """Implements TextService without its process, which takes a second to start."""

    def __init__(self) -> None:
        self._worker = TextWorker()

    @classmethod
    async def start(cls, niceness: int) -> "InlineText":
        return cls()

    async def ask(self, call: TextCall) -> TextAnswer:
        if isinstance(call, LoadTokenizer):
            return self._worker.load(call)
        return self._worker.answer(call)

    def worked_s(self) -> float:
        return time.thread_time()

    def kill(self) -> None:
        """Nothing of it is left behind."""


class ServedGateway:
    """A gateway on a real server, its units, and the view that joins them."""

    def __init__(self, gateway: Gateway, url: str, folder: Path, units: list[FakeUnit]) -> None:
        self.gateway = gateway
        self.url = url
        self.folder = folder
        self.units = units

    def show(self, *units: FakeUnit, **overrides) -> None:
        self.gateway.update_view(fleet_view(*units, source=self.folder, **overrides))

    def headers_of_keys(self, *names: str) -> list[dict[str, str]]:
        """What requests with a new key each bear; from now on these keys are the only ones."""
        keys = {name: make_key() for name in names}
        entries = [KeyEntry(key_id=key.key_id, name=name, hash=key.hash) for name, key in keys.items()]
        self.gateway.access.set_keys(KeyRing(entries))
        return [{"authorization": f"Bearer {key.secret}"} for key in keys.values()]


@contextlib.asynccontextmanager
async def running(
    gateway: Gateway, *, batches: BatchSettings | None = None, spans: RequestSpans | None = None
) -> AsyncIterator[str]:
    config = uvicorn.Config(
        create_app(gateway, batches=batches, spans=spans),
        host="127.0.0.1",
        port=0,
        log_level="warning",
        lifespan="on",
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    await eventually(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task
