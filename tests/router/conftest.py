import contextlib
from pathlib import Path

import pytest
from fake_unit import FakeUnit, write_byte_tokenizer
from served_gateway import InlineText, ServedGateway, running

from router.limits import GatewayLimits
from router.serving.gateway import Gateway


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Gateways of several tests would import it from threads of their own at once, and see half of it.
    from transformers import AutoTokenizer

    assert AutoTokenizer is not None
    return write_byte_tokenizer(tmp_path_factory.mktemp("byte-tokenizer"))


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
