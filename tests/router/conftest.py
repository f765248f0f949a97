import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvicorn
from fake_unit import FakeUnit, eventually, fleet_view, write_byte_tokenizer

from router.http.app import create_app
from router.limits import GatewayLimits
from router.serving.gateway import Gateway
from router.text.calls import LoadTokenizer, TextAnswer, TextCall
from router.text.worker import TextWorker


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Gateways of several tests would import it from threads of their own at once, and see half of it.
    from transformers import AutoTokenizer

    assert AutoTokenizer is not None
    return write_byte_tokenizer(tmp_path_factory.mktemp("byte-tokenizer"))


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


@pytest.fixture
async def serve(tokenizer_folder: Path):
    """`serve(*units, limits=...)` starts units and a gateway that knows them."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(*units: FakeUnit, limits: GatewayLimits | None = None) -> ServedGateway:
            for unit in units:
                await stack.enter_async_context(unit)
            gateway = Gateway(limits, start_text=InlineText.start)
            url = await stack.enter_async_context(running(gateway))
            served = ServedGateway(gateway, url, tokenizer_folder, list(units))
            served.show(*units)
            return served

        yield start


@contextlib.asynccontextmanager
async def running(gateway: Gateway) -> AsyncIterator[str]:
    config = uvicorn.Config(
        create_app(gateway), host="127.0.0.1", port=0, log_level="warning", lifespan="on", timeout_graceful_shutdown=1
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
