"""A gateway whose answers are compared with the document it exports."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import httpx
from fake_unit import FakeUnit, fleet_view
from served_gateway import InlineText, running

from router.batches.batch_settings import BatchSettings
from router.serving.gateway import Gateway

MODEL = "demo/bytes"
ANSWER_S = 60.0  # a request shares the machine, and this process, with whoever makes the next one up


@contextlib.contextmanager
def served_apart(tokenizer_folder: Path, batches_folder: Path) -> Iterator[str]:
    """Yields the address of a gateway in a thread of its own, before a unit: schemathesis calls synchronously. It works
    on text itself: the process for that is started, and the tokenizer loaded, with the first request, which on a busy
    machine takes longer than a client of schemathesis waits.
    """
    url: Future[str] = Future()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def live() -> None:
        gateway = Gateway(start_text=InlineText.start)
        batches = BatchSettings(url=str(batches_folder), poll_s=0.1)
        async with FakeUnit(max_model_len=64) as unit, running(gateway, batches=batches) as address:
            gateway.update_view(fleet_view(unit, source=tokenizer_folder))
            async with httpx.AsyncClient(base_url=address) as http:
                while True:  # until its folder is open
                    if (await http.get("/v1/files")).status_code != 503:
                        break
                    await asyncio.sleep(0.02)
            url.set_result(address)
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(live()))
    thread.start()
    yield url.result(timeout=120)
    loop.call_soon_threadsafe(stop.set)
    thread.join(timeout=120)
    loop.close()
