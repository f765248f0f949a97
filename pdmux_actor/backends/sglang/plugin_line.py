"""The engine process's end of the socket to the plugin."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path

from pdmux_actor.backends.sglang.link import (
    DecisionsTold,
    FromPlugin,
    GuardKept,
    KeepGuard,
    LaunchTook,
    PluginHello,
    PluginLoad,
    RecordsTold,
    TellDecisions,
    TellRecords,
    ToPlugin,
)
from pdmux_actor.serving.frames import FrameReader, framed

_READ_BYTES = 256 * 1024

_Answer = DecisionsTold | RecordsTold | LaunchTook | GuardKept


class PluginLine:
    """One plugin at a time: a model that is loaded after another has a scheduler of its own."""

    def __init__(self, path: Path, on_load: Callable[[PluginLoad], None]) -> None:
        self.path = path
        self._on_load = on_load
        self._server: asyncio.Server | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._hung_up = asyncio.Event()
        self._hung_up.set()
        self._hello: asyncio.Future[PluginHello] | None = None
        self._calls: dict[int, asyncio.Future[_Answer]] = {}
        self._call_ids = itertools.count()

    async def listen(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self.path)

    def expect_hello(self) -> None:
        self._hello = asyncio.get_running_loop().create_future()

    async def hello(self) -> PluginHello:
        """Returns what the scheduler that starts after `expect_hello` says of itself."""
        assert self._hello is not None
        return await self._hello

    def send(self, message: ToPlugin) -> None:
        """Nothing is sent to a scheduler that is gone."""
        if (writer := self._open_writer) is not None:
            writer.write(framed(message))

    async def decisions(self, last: int) -> DecisionsTold:
        told = await self._answer(lambda call: self._ask(TellDecisions(call, last)))
        assert isinstance(told, DecisionsTold)
        return told

    async def records(self) -> RecordsTold:
        """Everything that PluginConfig.records has kept."""
        told = await self._answer(lambda call: self._ask(TellRecords(call)))
        assert isinstance(told, RecordsTold)
        return told

    async def launch_s(self, ask: Callable[[int], Awaitable[None]]) -> float:
        """`ask` has the plugin time a launch and answer under that number."""
        told = await self._answer(ask)
        assert isinstance(told, LaunchTook)
        return told.seconds

    async def keep_guard(self) -> None:
        """Returns when the plugin has written what its contention guard learned, at once if there is none."""
        if self._open_writer is not None:
            await self._answer(lambda call: self._ask(KeepGuard(call)))

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        # no deadline: the actor kills this process when it does not end
        await self._hung_up.wait()
        if self._server is not None:
            self._server.close()

    @property
    def _open_writer(self) -> asyncio.StreamWriter | None:
        return None if self._writer is None or self._writer.is_closing() else self._writer

    async def _ask(self, question: TellDecisions | TellRecords | KeepGuard) -> None:
        self.send(question)

    async def _answer(self, ask: Callable[[int], Awaitable[None]]) -> _Answer:
        answer: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        call = next(self._call_ids)
        self._calls[call] = answer
        try:
            await ask(call)
            return await answer
        finally:
            del self._calls[call]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._hung_up.clear()
        try:
            await self._read(reader)
        finally:
            writer.close()
            if self._writer is writer:
                self._hung_up.set()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        messages: FrameReader[FromPlugin] = FrameReader(FromPlugin)
        while data := await reader.read(_READ_BYTES):
            for message in messages.feed(data):
                match message:
                    case PluginHello():
                        if self._hello is not None and not self._hello.done():
                            self._hello.set_result(message)
                    case PluginLoad():
                        self._on_load(message)
                    case DecisionsTold() | RecordsTold() | LaunchTook() | GuardKept():
                        answer = self._calls.get(message.call)
                        if answer is not None and not answer.done():
                            answer.set_result(message)
