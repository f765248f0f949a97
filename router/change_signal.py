"""Wakes whoever waits for the next change of something."""

import asyncio


class ChangeSignal:
    def __init__(self) -> None:
        self._next = asyncio.Event()

    def tell(self) -> None:
        """Wakes all that wait now."""
        told, self._next = self._next, asyncio.Event()
        told.set()

    async def changed(self) -> None:
        """Returns at the next change."""
        await self._next.wait()  # no deadline: the caller's

    async def changed_within(self, timeout_s: float) -> None:
        """Returns at the next change, or after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):  # wait_for of Python 3.11 can lose a cancellation
                await self._next.wait()
        except TimeoutError:
            return
