"""lm-eval, unmodified, in an environment of its own, against a gateway whose units are fakes: `make test-lm-eval`."""

import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "router"))

from fake_unit import FakeUnit, write_byte_tokenizer
from lm_eval_run import PROGRAM
from served_gateway import InlineText, ServedGateway, running

from router.serving.gateway import Gateway


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker("lm_eval")
    item.add_marker("slow")
    if not PROGRAM.exists():
        item.add_marker(pytest.mark.skip(reason="needs lm-eval: make test-lm-eval"))


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[ServedGateway]:
    """A gateway in front of a unit whose model's tokens are bytes."""
    folder = write_byte_tokenizer(tmp_path / "tokenizer")
    async with contextlib.AsyncExitStack() as stack:
        unit = await stack.enter_async_context(FakeUnit())
        gateway = Gateway(start_text=InlineText.start)
        url = await stack.enter_async_context(running(gateway))
        served = ServedGateway(gateway, url, folder, [unit])
        served.show(unit)
        yield served
