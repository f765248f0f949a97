"""Several generations of one request as one stream."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


def so_many_at_once(streams: Iterable[AsyncGenerator[T, None]], most: int) -> list[AsyncGenerator[T, None]]:
    """Streams that begin when fewer than `most` of them are under way."""
    room = asyncio.Semaphore(most)

    async def in_turn(stream: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        # no deadline: each generation before it has its own
        async with room, aclosing(stream) as items:
            async for item in items:
                yield item

    return [in_turn(stream) for stream in streams]


async def interleave(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """Items with the index of their stream, as they come. The first error ends all; so does closing."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for item in only:
                yield 0, item
        return
    arrived: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue(maxsize=2 * len(streams))

    async def pump(index: int, stream: AsyncGenerator[T, None]) -> None:
        try:
            async with aclosing(stream) as items:
                async for item in items:
                    await arrived.put((index, item))
        except Exception as error:  # whatever it is, the reader raises it
            await arrived.put(error)
        else:
            await arrived.put(None)

    tasks = [asyncio.create_task(pump(index, stream)) for index, stream in enumerate(streams)]
    try:
        running = len(tasks)
        while running:
            # no deadline: each generation has its own
            arrival = await arrived.get()
            if isinstance(arrival, Exception):
                raise arrival
            if arrival is None:
                running -= 1
            else:
                yield arrival
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
