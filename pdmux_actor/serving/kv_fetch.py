"""Fetches a prompt's KV from the prefix cache of another unit into this one's, over the frame stream."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from pdmux_actor.backends.base import Engine
from pdmux_actor.errors import EngineDied, StreamRefused
from pdmux_actor.kv.prefix_kv import PrefixRows, PromptStart
from pdmux_actor.serving.frames import (
    PROTOCOL_VERSION,
    FetchKv,
    FrameReader,
    FrameTooLarge,
    FromUnit,
    Hello,
    KvFetched,
    KvMoved,
    Refused,
    ToUnit,
    WeightsName,
    Welcome,
    encode,
)

STEP_S = 2.0
"""A step of a transfer that takes longer is its last: computing the rest is sooner than waiting for it."""

_READ_BYTES = 1024 * 1024


class KvSource:
    """The unit that has the KV, over a connection of one transfer's own."""

    def __init__(self, endpoint: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._endpoint = endpoint
        self._reader = reader
        self._writer = writer
        self._frames: FrameReader[FromUnit] = FrameReader(FromUnit)
        self._arrived: list[FromUnit] = []

    @classmethod
    @asynccontextmanager
    async def opened(cls, endpoint: str, token: str) -> AsyncIterator["KvSource"]:
        """Raises OSError, TimeoutError, StreamRefused, and what `rows` raises."""
        host, _, port = endpoint.rpartition(":")
        async with asyncio.timeout(STEP_S):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        try:
            source = cls(endpoint, reader, writer)
            async with asyncio.timeout(STEP_S):
                source._send(Hello(version=PROTOCOL_VERSION, token=token))
                while not isinstance(await source._next(), Welcome):
                    pass
            yield source
        finally:
            writer.transport.abort()

    async def rows(self, prompt: PromptStart, first_row: int, weights: WeightsName) -> PrefixRows | None:
        """None: it has no more of this prompt.

        Raises:
            ConnectionError: it went away.
            StreamRefused: it does not take what it is sent.
            msgspec.DecodeError, FrameTooLarge: it breaks the protocol.
        """
        self._send(FetchKv(call=first_row, prompt=prompt, first_row=first_row, weights=weights))
        while True:
            message = await self._next()  # no deadline: `fetch_kv` has one for each step
            if isinstance(message, KvFetched) and message.call == first_row:
                return message.rows

    def _send(self, message: ToUnit) -> None:
        self._writer.write(encode(message))

    async def _next(self) -> FromUnit:
        while not self._arrived:
            data = await self._reader.read(_READ_BYTES)
            if not data:
                raise ConnectionError("it closed the connection")
            self._arrived += self._frames.feed(data)
        message = self._arrived.pop(0)
        if isinstance(message, Refused):
            raise StreamRefused(endpoint=self._endpoint, reason=message.reason)
        return message


async def fetch_kv(engine: Engine, prompt: PromptStart, endpoint: str, token: str, weights: WeightsName) -> KvMoved:
    """Brings into the engine's prefix cache what it lacks of a prompt and the unit at `endpoint` has. Whatever goes
    wrong is told and no more: what does not come is computed.
    """
    started_s, num_bytes, why = time.monotonic(), 0, ""
    try:
        async with asyncio.timeout(STEP_S):
            kept = await engine.keep_prefix(prompt, None)
        if kept.num_missing:
            async with KvSource.opened(endpoint, token) as source:
                while kept.num_missing and not why:
                    async with asyncio.timeout(STEP_S):
                        rows = await source.rows(prompt, kept.num_rows, weights)
                        if rows is None:
                            why = "it has no more of it"
                            break
                        before, kept = kept, await engine.keep_prefix(prompt, rows)
                    num_bytes += len(rows.data)
                    if kept.num_rows <= before.num_rows:
                        why = "there is no room for it, or its layout is another one"
    except TimeoutError:
        why = f"a step took more than {STEP_S:g} s"
    except (OSError, ValueError, StreamRefused, EngineDied, FrameTooLarge, msgspec.DecodeError) as error:
        why = f"{type(error).__name__}: {error}"
    return KvMoved(num_bytes=num_bytes, seconds=time.monotonic() - started_s, why_not_all=why)
