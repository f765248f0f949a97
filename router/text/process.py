"""One process that works on text, as asyncio sees it."""

import asyncio
import itertools
import socket
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from pdmux_actor.serving.own_program import own_program
from router.text.calls import LENGTH, TextAnswer, TextCall, frame

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

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._writer = writer
        self._waiting: dict[int, asyncio.Future[TextAnswer]] = {}
        self._numbers = itertools.count()
        self._lost = False
        self._reading = asyncio.create_task(self._read(reader))

    @classmethod
    async def start(cls, niceness: int = 0) -> "TextProcess":
        """Raises OSError: the machine has no room for another process."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *own_program("router.text.worker"),
                str(theirs.fileno()),
                str(niceness),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
            )
        ours.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        return cls(process, reader, writer)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(self, call: TextCall) -> TextAnswer:
        if self._lost:
            raise TextProcessLost
        number = next(self._numbers)
        answer: asyncio.Future[TextAnswer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._writer.write(frame(msgspec.structs.replace(call, call=number)))
            return await answer
        finally:
            self._waiting.pop(number, None)

    def kill(self) -> None:
        self._lose()
        self._writer.close()
        if self._process.returncode is None:
            self._process.kill()

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
            self._writer.close()

    def _lose(self) -> None:
        self._lost = True
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(TextProcessLost())
