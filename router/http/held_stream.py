"""A stream that waits for its model: its client is told how far the model is, in comment lines."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass

from router.admission.load_forecast import LoadOutlook
from router.telemetry.service_report import ServiceReport


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedStream:
    """Holds the first event of a stream, those after it, and how it is served."""

    first: bytes
    events: AsyncGenerator[bytes, None]
    report: ServiceReport


class HeldStream:
    """`outlook` says how far the model is that the stream waits for; None: it does not wait for one.

    The status 200 goes out before the first token only where the model should be ready within `patience_s`: else the
    client gets the error's own status, and may try again.
    """

    def __init__(
        self,
        starting: Awaitable[StartedStream],
        outlook: Callable[[], LoadOutlook | None],
        *,
        clock: Callable[[], float],
        patience_s: float,
        every_s: float,
    ) -> None:
        self._starting = asyncio.ensure_future(starting)
        self._outlook = outlook
        self._clock = clock
        self._until_s = clock() + patience_s
        self._every_s = every_s
        self._known: LoadOutlook | None = None  # when its client began to be told

    async def begun(self) -> StartedStream | None:
        """Returns once the stream has started; None: it waits still, and its client should be told.

        Raises what starting raises.
        """
        try:
            while not await self._has_started():
                outlook = self._outlook()
                if outlook is None or outlook.ready_in_s is None:
                    continue
                if self._clock() + outlook.ready_in_s < self._until_s:
                    self._known = outlook
                    return None
            return self._starting.result()
        except asyncio.CancelledError:
            await self._let_go()
            raise

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yields how far the model is whenever that has changed, then how the stream is served, then its events. Raises
        what starting raises.
        """
        told, outlook = None, self._known
        try:
            while True:
                if outlook is not None and (text := outlook.text()) != told:
                    told = text
                    yield comment(text)
                if await self._has_started():
                    break
                outlook = self._outlook()
            started = self._starting.result()
            async with aclosing(started.events):
                if headers := started.report.headers():  # it is too late for those of the response
                    yield comments(headers)
                yield started.first
                async for event in started.events:
                    yield event
        finally:
            await self._let_go()

    async def _has_started(self) -> bool:
        await asyncio.wait((self._starting,), timeout=self._every_s)
        return self._starting.done()

    async def _let_go(self) -> None:
        self._starting.cancel()
        (result,) = await asyncio.gather(self._starting, return_exceptions=True)
        if not isinstance(result, BaseException):
            await result.events.aclose()


def comment(text: str) -> bytes:
    """A line that clients of server-sent events leave out."""
    return b": " + " ".join(text.split()).encode() + b"\n\n"


def comments(headers: Mapping[str, str]) -> bytes:
    return b"".join(f": {name}: {value}\n".encode() for name, value in headers.items()) + b"\n"
