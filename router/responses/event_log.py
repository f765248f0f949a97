"""Events of one response by their sequence numbers, for whoever follows them, from the start or from any of them on."""

import asyncio
from collections.abc import AsyncGenerator

from router.errors import InvalidRequest

_END = b"\n\n"
_PAGE_EVENTS = 1024


class EventLog:
    """`append` is told events in their order, any number at once, until `close`."""

    def __init__(self) -> None:
        self._events: list[bytes] = []
        self._news = asyncio.Event()
        self.size_bytes = 0
        self.is_over = False
        self.is_dropped = False

    @property
    def num_events(self) -> int:
        return len(self._events)

    def append(self, events: bytes) -> None:
        if not self.is_dropped:
            self._events += (event + _END for event in events.split(_END)[:-1])
            self.size_bytes += len(events)
            self._tell()

    def close(self) -> None:
        self.is_over = True
        self._tell()

    def drop(self) -> None:
        """Makes room: who follows, now or later, is told that there is nothing to follow."""
        self._events, self.size_bytes, self.is_dropped = [], 0, True
        self._tell()

    def page(self, after: int) -> list[bytes]:
        """Returns what has come after the event of that number, -1 for all, as much as makes a page.

        Raises InvalidRequest.
        """
        if self.is_dropped:
            raise not_followed()
        return self._events[after + 1 : after + 1 + _PAGE_EVENTS]

    async def follow(self, after: int) -> AsyncGenerator[bytes, None]:
        """Yields the events after that number, as they come, to the last one. Raises InvalidRequest."""
        while True:
            news = self._news
            if events := self.page(after):
                after += len(events)
                yield b"".join(events)
            elif self.is_over:
                return
            else:
                await news.wait()  # no deadline: the generation has its own

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


def not_followed() -> InvalidRequest:
    return InvalidRequest(
        "The events of this response are not kept: it was not made with 'background' and 'stream', or too much came "
        "after it. Read it without 'stream'.",
        param="stream",
    )
