import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import fastapi.routing
import httpx
import openai
import pytest
from batch_rig import Replica, settings
from fake_unit import FakeUnit, write_byte_tokenizer
from served_document import served_apart
from served_gateway import InlineText, ServedGateway, running
from served_ingress import running_ingress

from router.access.api_keys import KeyRing
from router.batches.batch_worker import BatchWorker
from router.limits import GatewayLimits
from router.serving.gateway import Gateway


@pytest.fixture(scope="session", autouse=True)
def shared_response_fields() -> Iterator[None]:
    """FastAPI makes a validator of each route's responses, a hundred for an application: they are the same for all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastapi.routing.create_model_field", cache(fastapi.routing.create_model_field))
        yield


@pytest.fixture(scope="session", autouse=True)
def servers_that_end_soon() -> Iterator[None]:
    """uvicorn looks ten times a second whether it shall end, then sleeps a tenth of a second: most of a test's time."""

    def sleep(delay_s: float) -> Awaitable[None]:
        return asyncio.sleep(delay_s / 20)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("uvicorn.server.asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
        yield


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Gateways of several tests would import it from threads of their own at once, and see half of it.
    from transformers import AutoTokenizer

    assert AutoTokenizer is not None
    return write_byte_tokenizer(tmp_path_factory.mktemp("byte-tokenizer"))


@pytest.fixture(scope="module")
def served_url(tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served_apart(tokenizer_folder, tmp_path_factory.mktemp("batches")) as url:
        yield url


@pytest.fixture
async def replica(monkeypatch: pytest.MonkeyPatch):
    """The ingress, its control loop's stand-in, and a client."""
    async with running_ingress(monkeypatch) as running:
        yield running


@pytest.fixture
def ingress(replica):
    _, control, http = replica
    return control, http


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


@pytest.fixture
async def http(serve) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a gateway with one unit."""
    served = await serve(FakeUnit())
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:
        client.served = served
        yield client


@pytest.fixture
async def start(tokenizer_folder, tmp_path, monkeypatch):
    """`start(unit, ...)` starts a gateway replica over the test's folder; it may be left before the test's end."""
    async with contextlib.AsyncExitStack() as stack:

        @contextlib.asynccontextmanager
        async def replica(unit: FakeUnit, keys: KeyRing | None = None, api_key: str = "x", **changes):
            gateway = Gateway(start_text=InlineText.start)
            gateway.access.set_keys(keys)
            async with running(gateway, batches=settings(tmp_path / "kept", **changes)) as url:
                served = ServedGateway(gateway, url, tokenizer_folder, [unit])
                served.show(unit)
                async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=api_key, max_retries=5) as sdk:
                    yield Replica(served, sdk)

        async def unit(**options) -> FakeUnit:
            return await stack.enter_async_context(FakeUnit(**options))

        workers: list[BatchWorker] = []

        class Noted(BatchWorker):
            def __init__(self, *arguments) -> None:
                super().__init__(*arguments)
                workers.append(self)

        monkeypatch.setattr("router.batches.batch_service.BatchWorker", Noted)
        replica.unit, replica.workers = unit, workers
        yield replica
