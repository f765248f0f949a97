"""Moves KV of prompts between the prefix caches of this unit and others, over the frame stream."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import msgspec

from pdmux_actor.backends.base import Engine
from pdmux_actor.errors import EngineDied, StreamRefused
from pdmux_actor.kv.prefix_kv import PrefixRows, PromptStart
from pdmux_actor.messages import GenerateRequest
from pdmux_actor.serving.connection_heartbeat import bound_silence
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

logger = logging.getLogger(__name__)

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
            bound_silence(writer.transport)
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


class KvTransfers:
    """A request whose prompt was computed elsewhere is submitted when its KV has come, or will not."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._fetches: dict[str, asyncio.Task[None]] = {}
        self._reads: set[asyncio.Task[None]] = set()

    def fetch(
        self,
        request: GenerateRequest,
        token: str,
        weights: WeightsName,
        on_moved: Callable[[GenerateRequest, KvMoved], None],
    ) -> None:
        """`on_moved` is told of the request as it can be submitted, once, unless it is given up before."""
        task = asyncio.create_task(self._fetch(request, token, weights, on_moved))
        self._fetches[request.request_id] = task
        task.add_done_callback(lambda _: self._fetches.pop(request.request_id, None))

    def awaits(self, request_id: str) -> bool:
        """Says whether the request is still to be submitted."""
        return request_id in self._fetches

    def give_up(self, request_id: str) -> None:
        """Nobody waits for the request any more."""
        if (task := self._fetches.pop(request_id, None)) is not None:
            task.cancel()

    def read(self, asked: FetchKv, send: Callable[[KvFetched], None]) -> None:
        """Answers another unit with KV of a model that is here."""
        task = asyncio.create_task(self._read(asked, send))
        self._reads.add(task)
        task.add_done_callback(self._reads.discard)

    async def stop(self) -> None:
        tasks = [*self._fetches.values(), *self._reads]
        for task in tasks:
            task.cancel()
        if tasks:
            # no deadline: they were cancelled and await nothing that shields itself
            await asyncio.wait(tasks)

    async def _fetch(
        self,
        request: GenerateRequest,
        token: str,
        weights: WeightsName,
        on_moved: Callable[[GenerateRequest, KvMoved], None],
    ) -> None:
        prompt = PromptStart(model=request.model, token_ids=request.prompt_token_ids, cache_salt=request.cache_salt)
        try:
            moved = await fetch_kv(self._engine, prompt, request.kv_from, token, weights)
        except Exception:  # the request is answered all the same
            logger.exception("a prompt's KV cannot be fetched", extra={"generation_id": request.request_id})
            moved = KvMoved(why_not_all="the unit failed on it; its log has the traceback")
        if moved.why_not_all:
            told = {"generation_id": request.request_id, "from": request.kv_from, "reason": moved.why_not_all}
            logger.warning("a prompt's KV is computed anew", extra=told)
        on_moved(replace(request, kv_from=""), moved)

    async def _read(self, asked: FetchKv, send: Callable[[KvFetched], None]) -> None:
        try:
            rows = await self._engine.read_prefix(asked.prompt, asked.first_row)
        except EngineDied:
            rows = None
        send(KvFetched(asked.call, rows))
