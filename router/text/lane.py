"""Work on text, a call at a time, the least first, in a process that is replaced when it dies or takes too long."""

import asyncio
import heapq
import itertools
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec
import psutil

from pdmux_actor.serving.frames import LENGTH
from pdmux_actor.serving.own_program import OwnProcess, start_own_program
from router.text.calls import (
    LoadTokenizer,
    OpenReply,
    ReadReply,
    ReplyCall,
    TextAnswer,
    TextCall,
    TokenizerCall,
    TokenizerFailed,
    TokenizerKey,
    TokenizerLoaded,
)

_DECODER: msgspec.msgpack.Decoder[TextAnswer] = msgspec.msgpack.Decoder(TextAnswer)


class TextProcessLost(Exception):
    """The process ended before it answered."""


class TextService(Protocol):
    """Answers calls. A call's `call` is set by the service."""

    async def ask(self, call: TextCall) -> TextAnswer:
        """Raises TextProcessLost."""
        ...

    def worked_s(self) -> float:
        """Returns the time of a core that it has used."""
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
            body = msgspec.json.encode(msgspec.structs.replace(call, call=number))
            self._own.writer.write(LENGTH.pack(len(body)) + body)
            return await answer
        finally:
            self._waiting.pop(number, None)

    def worked_s(self) -> float:
        try:
            times = psutil.Process(self.pid).cpu_times()
        except psutil.Error:
            return 0.0
        return times.user + times.system

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


class Turns:
    """A small prompt does not wait behind ten large ones. Call from one event loop."""

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()

    async def acquire(self, work: int) -> None:
        if not self._is_taken:
            self._is_taken = True
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (work, next(self._numbers), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was given the turn and leaves in the same moment
                self.release()
            raise

    def release(self) -> None:
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._is_taken = False


logger = logging.getLogger(__name__)

_ATTEMPTS = 2  # a call whose process ended, or stood, under it is tried once more
_IDLE_S = 2.0  # so long a process that works on a call may do nothing at all
_LOOK_S = 0.5
_STANDS_SHARE = 0.1  # of that time: a process that works for less does not stay because of its call


class TextLaneFull(Exception):
    """Signals that as much text waits as may."""


class TextTooSlow(Exception):
    """The call did not end in time; its process was replaced."""


class TextLane:
    """Started with the first call. A caller that leaves while its call is worked on leaves the work behind: it ends by
    its own limit.
    """

    def __init__(
        self,
        start: Callable[[], Awaitable[TextService]],
        *,
        max_waiting: int,
        max_waiting_characters: int,
        load_timeout_s: float,
    ) -> None:
        self._start = start
        self._max_waiting = max_waiting
        self._max_waiting_characters = max_waiting_characters
        self._load_timeout_s = load_timeout_s
        self._turns = Turns()
        self._starting = asyncio.Lock()
        self._service: TextService | None = None
        self._loads: dict[TokenizerKey, asyncio.Task[TokenizerLoaded | TokenizerFailed]] = {}
        self._work: set[asyncio.Task[TextAnswer]] = set()
        self._waiting = 0
        self._waiting_characters = 0

    async def load(self, tokenizer: TokenizerKey) -> TokenizerLoaded | TokenizerFailed:
        """Raises TextProcessLost, TextTooSlow, OSError."""
        service = await self._running()
        load = self._loads.get(tokenizer)
        if load is None or (load.done() and _has_failed(load)):
            load = self._loads[tokenizer] = asyncio.create_task(self._load_on(service, tokenizer))
            load.add_done_callback(_retrieve)
        return await asyncio.shield(load)  # a caller that leaves does not stop the load for the others

    async def reload(self, tokenizer: TokenizerKey) -> TokenizerLoaded | TokenizerFailed:
        """Loads what the process has forgotten. Raises as `load`."""
        known = self._loads.get(tokenizer)
        if known is not None and known.done():
            del self._loads[tokenizer]
        return await self.load(tokenizer)

    async def answer(self, call: TokenizerCall | ReplyCall, *, characters: int, limit_s: float) -> TextAnswer:
        """`limit_s` counts from the call's turn.

        Raises:
            TextLaneFull, TextTooSlow, OSError
            TextProcessLost: processes ended, or stood, under the call.
        """
        if self._waiting >= self._max_waiting or self._waiting_characters > self._max_waiting_characters:
            raise TextLaneFull
        self._waiting += 1
        self._waiting_characters += characters
        try:
            await self._turns.acquire(characters)
            work = asyncio.create_task(self._answer(call, limit_s))
            self._work.add(work)
            work.add_done_callback(self._turn_over)
            return await asyncio.shield(work)
        finally:
            self._waiting -= 1
            self._waiting_characters -= characters

    def close(self) -> None:
        for task in (*self._work, *self._loads.values()):
            task.cancel()
        self._discard(self._service)

    def _turn_over(self, work: asyncio.Task[TextAnswer]) -> None:
        self._turns.release()
        self._work.discard(work)
        _retrieve(work)

    async def _answer(self, call: TokenizerCall | ReplyCall, limit_s: float) -> TextAnswer:
        for left in reversed(range(_ATTEMPTS)):
            try:
                if not isinstance(call, OpenReply | ReadReply):
                    loaded = await self.load(call.tokenizer)
                    if isinstance(loaded, TokenizerFailed):
                        return loaded
                service = await self._running()
                return await self._within(service, service.ask(call), limit_s, is_work=True)
            except TextProcessLost:
                if not left:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def _within(
        self, service: TextService, answer: Awaitable[TextAnswer], limit_s: float, *, is_work: bool
    ) -> TextAnswer:
        """What is no work may wait for others, as a load does."""
        attendance: _Attendance | None = None
        try:
            async with asyncio.timeout(limit_s) as limit:
                if not is_work:
                    return await answer
                with _Attendance(service, limit) as attendance:
                    return await answer
        except TimeoutError:
            stands = attendance is not None and (attendance.found_idle or await _stands(service))
            told = {"limit_s": limit_s, "stands": stands}
            logger.warning("work on text takes too long; its process is replaced", extra=told)
            self._discard(service)
            raise (TextProcessLost if stands else TextTooSlow) from None
        except TextProcessLost:
            logger.warning("the process that works on text ended")
            self._discard(service)
            raise

    async def _load_on(self, service: TextService, tokenizer: TokenizerKey) -> TokenizerLoaded | TokenizerFailed:
        call = LoadTokenizer(0, tokenizer)
        answer = await self._within(service, service.ask(call), self._load_timeout_s, is_work=False)
        assert isinstance(answer, TokenizerLoaded | TokenizerFailed), answer
        return answer

    async def _running(self) -> TextService:
        async with self._starting:
            if self._service is None:
                self._service = await self._start()
            return self._service

    def _discard(self, service: TextService | None) -> None:
        if service is not None and service is self._service:
            service.kill()
            self._service = None
            self._loads.clear()


class _Attendance:
    """Ends a wait early whose process has done nothing at all for some time: the limit is that of one that works."""

    def __init__(self, service: TextService, limit: asyncio.Timeout) -> None:
        self.found_idle = False
        """Whether that ended the wait: its call was not too slow, whatever the process does from now on."""
        self._service = service
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._worked_s: float | None = None
        self._timer = self._loop.call_later(_IDLE_S, self._look)

    def __enter__(self) -> "_Attendance":
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        before_s, self._worked_s = self._worked_s, self._service.worked_s()
        if self._worked_s == before_s:
            self.found_idle = True
            self._limit.reschedule(self._loop.time())
        else:
            self._timer = self._loop.call_later(_IDLE_S, self._look)


async def _stands(service: TextService) -> bool:
    """Says of one that does not answer whether it is stopped, or gets no core, and does not work."""
    worked_before_s = service.worked_s()
    await asyncio.sleep(_LOOK_S)
    return service.worked_s() - worked_before_s < _STANDS_SHARE * _LOOK_S


def _has_failed(load: asyncio.Task[TokenizerLoaded | TokenizerFailed]) -> bool:
    return load.cancelled() or load.exception() is not None or isinstance(load.result(), TokenizerFailed)


def _retrieve(task: asyncio.Task[TextAnswer] | asyncio.Task[TokenizerLoaded | TokenizerFailed]) -> None:
    if not task.cancelled():
        task.exception()  # retrieved, so that asyncio does not log what every caller was told
