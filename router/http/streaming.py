"""Sending replies and noticing that the client left, by the rules of server-sent events."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from router.error_bodies import error_body
from router.errors import GatewayFault, RouterError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_KEEP_ALIVE = b": keep-alive\n\n"


class ClientDisconnected(Exception):
    """The client closed the connection before its answer was complete."""


async def unless_disconnected(request: Request, work: Awaitable[T]) -> T:
    """Awaits `work`; cancels it as soon as the client is gone. The request's body must have been read.

    Raises:
        ClientDisconnected: the client left first.
    """
    task = asyncio.ensure_future(work)
    left = asyncio.create_task(_disconnected(request.receive))
    try:
        # no deadline: the work has its own, and the client may leave
        await asyncio.wait((task, left), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnected
        return task.result()
    finally:
        left.cancel()
        task.cancel()
        await asyncio.gather(left, task, return_exceptions=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventStyle:
    """Says how a stream ends, and how an error is told in it: in the shape of the API that `path` belongs to, and, with
    `names_errors`, as an event of that name.
    """

    done: bytes = b"data: [DONE]\n\n"
    path: str = ""
    names_errors: bool = False

    def error(self, body: dict[str, Any]) -> bytes:
        name = b"event: error\n" if self.names_errors else b""
        return name + b"data: " + msgspec.json.encode(body) + b"\n\n"


class EventStream(Response):
    """Sends `first`, if there is one, and `events` as they come. Closes them as soon as the client leaves, or reads
    nothing for `write_timeout_s`; an error becomes the last event, and `on_error` is told of it: the status does not
    tell any more that there was one.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        *,
        first: bytes = b"",
        request_id: str,
        keep_alive_s: float,
        write_timeout_s: float,
        headers: Mapping[str, str],
        style: EventStyle,
        on_error: Callable[[RouterError], None] = lambda error: None,
    ) -> None:
        self.status_code = 200
        self._on_error = on_error
        self._style = style
        self.background = None
        self._events = events
        self._first = first
        self._request_id = request_id
        self._keep_alive_s = keep_alive_s
        self._write_timeout_s = write_timeout_s
        self._turn = asyncio.Lock()
        self._last_write_s = 0.0  # when it began
        self._is_writing = False
        self.init_headers({**headers, "cache-control": "no-cache", "x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._last_write_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(None) as patience:
                self._watch_writes(patience)
                await self._send(receive, send)
        except TimeoutError as error:
            logger.warning("a client reads nothing; let go", extra={"request_id": self._request_id})
            raise ClientDisconnected from error
        finally:
            self._watch.cancel()

    async def _send(self, receive: Receive, send: Send) -> None:
        sender = asyncio.create_task(self._send_events(send))
        keeper = asyncio.create_task(self._keep_alive(send))
        left = asyncio.create_task(_disconnected(receive))
        try:
            # no deadline: the caller has one for each write, and the client may leave
            await asyncio.wait((sender, left, keeper), return_when=asyncio.FIRST_COMPLETED)
            if not sender.done():
                raise ClientDisconnected
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)  # nothing may follow the end
            await self._write(send, sender.result(), more_body=False)
        finally:
            for task in (sender, keeper, left):
                task.cancel()
            await asyncio.gather(sender, keeper, left, return_exceptions=True)

    async def _send_events(self, send: Send) -> bytes:
        """Returns what comes last."""
        async with aclosing(self._events) as events:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            try:
                event = self._first or await anext(events)
                while True:
                    await self._write(send, event)
                    event = await anext(events)
            except StopAsyncIteration:
                return self._style.done
            except ClientDisconnected:
                raise
            except RouterError as error:
                logger.warning("stream ends with an error", extra={"request_id": self._request_id, "error": str(error)})
                failure = error
            except Exception:
                logger.exception("stream ends with our own error", extra={"request_id": self._request_id})
                failure = GatewayFault(request_id=self._request_id)
            self._on_error(failure)
            return self._style.error(error_body(failure, self._style.path))

    async def _write(self, send: Send, body: bytes, *, more_body: bool = True) -> None:
        """Returns when the server has room for more: it waits for a client that reads slowly."""
        async with self._turn:
            self._last_write_s, self._is_writing = asyncio.get_running_loop().time(), True
            try:
                await send({"type": "http.response.body", "body": body, "more_body": more_body})
            except OSError as error:  # some servers tell of a client that left by the write that fails
                raise ClientDisconnected from error
            finally:
                self._is_writing = False

    def _watch_writes(self, patience: asyncio.Timeout) -> None:
        """Ends the patience when a write takes too long. (A deadline for each would be a timer for each token.)"""
        loop = asyncio.get_running_loop()
        left_s = self._write_timeout_s
        if self._is_writing:
            left_s += self._last_write_s - loop.time()
        if left_s > 0:
            self._watch = loop.call_later(left_s, self._watch_writes, patience)
        else:
            patience.reschedule(loop.time())

    async def _keep_alive(self, send: Send) -> None:
        loop = asyncio.get_running_loop()
        while True:
            idle_s = 0.0 if self._is_writing else loop.time() - self._last_write_s
            await asyncio.sleep(max(self._keep_alive_s - idle_s, 0.01))
            if not self._is_writing and loop.time() - self._last_write_s >= self._keep_alive_s:
                await self._write(send, _KEEP_ALIVE)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
