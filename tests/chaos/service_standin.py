"""A stand-in for a Kubernetes Service: it leads each new connection to one of the ready pods, in turn."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

_CHUNK_BYTES = 65536


@contextmanager
def service(port: int, endpoints: Callable[[], Sequence[int]]) -> Iterator[str]:
    """Yields its address. A connection stays with its pod, as with kube-proxy, when that is no endpoint any more; one
    that finds no pod is closed.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    turns = iter(range(10**9))

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ports = endpoints()
        with suppress(OSError):
            if ports:
                there = await asyncio.open_connection("127.0.0.1", ports[next(turns) % len(ports)])
                await asyncio.gather(_passed_on(reader, there[1]), _passed_on(there[0], writer))
        writer.close()

    server = asyncio.run_coroutine_threadsafe(asyncio.start_server(lead, "127.0.0.1", port), loop).result()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


async def _passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    writer.close()
