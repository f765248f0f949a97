"""One process that works on text, as asyncio sees it."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from pdmux_actor.serving.frames import LENGTH
from pdmux_actor.serving.own_program import OwnProcess, start_own_program
from router.text.calls import TextAnswer, TextCall, frame

_DECODER: msgspec.msgpack.Decoder[TextAnswer] = msgspec.msgpack.Decoder(TextAnswer)


class TextProcessLost(Exception):
    """The process ended before it answered."""


class TextService(Protocol):
    """Answers calls. A call's `call` is set by the service."""

    async def ask(self, call: TextCall) -> TextAnswer:
        """Raises TextProcessLost."""
        ...

    def kill(self) -> None: ...


StartText = Callable[[int], Awaitable[TextService]]
"""Starts one, so much nicer than its gateway."""


class TextProcess:
    """Implements TextService over a process of its own, which ends with the thread that started it."""

    def __init__(self, own: OwnProcess) -> None:
        self._own = own
        self._waiting: dict[int, asyncio.Future[TextAnswer]] = {}
        self._numbers = itertools.count()
        self._lost = False
        self._reading = asyncio.create_task(self._read(own.reader))

    @classmethod
    async def start(cls, niceness: int = 0) -> "TextProcess":
        """Raises OSError: the machine has no room for another process."""
        return cls(await start_own_program("router.text.worker", str(niceness)))

    @property
    def pid(self) -> int:
        return self._own.process.pid

    async def ask(self, call: TextCall) -> TextAnswer:
        if self._lost:
            raise TextProcessLost
        number = next(self._numbers)
        answer: asyncio.Future[TextAnswer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._own.writer.write(frame(msgspec.structs.replace(call, call=number)))
            return await answer
        finally:
            self._waiting.pop(number, None)

    def kill(self) -> None:
        self._lose()
        self._own.kill()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                answer = _DECODER.decode(await reader.readexactly(length))
                waiting = self._waiting.get(answer.call)
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        except (asyncio.IncompleteReadError, OSError):
            self._lose()
            self._own.kill()

    def _lose(self) -> None:
        self._lost = True
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(TextProcessLost())
