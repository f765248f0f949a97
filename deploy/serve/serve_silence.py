"""Asks Serve's own controller again and again whether it is there, and tells when it is not."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from router.telemetry.fleet_event import EventKind

_POLL_S = 5.0


async def tell_of_silence(
    check: Callable[[], None], tell: Callable[[float, EventKind, str], None], clock: Callable[[], float]
) -> None:
    """Does not end. `check` blocks, and raises where it is not answered; `tell` takes the time of the event."""
    watch = ServeWatch()
    while True:
        try:
            await asyncio.to_thread(check)
        except Exception as error:  # Ray's client raises what it likes; that it does not answer is what counts
            kind, told = EventKind.SERVE_SILENT, watch.is_silent(clock(), type(error).__name__)
        else:
            kind, told = EventKind.SERVE_BACK, watch.answers(clock())
        if told is not None:
            tell(clock(), kind, told)
        await asyncio.sleep(_POLL_S)


SILENT_S = 30.0
"""Longer than Serve's controller takes to start again with a head that is back at once."""


@dataclass(slots=True)
class ServeWatch:
    """Both methods return what is to be told, once for each silence."""

    _silent_since_s: float | None = None
    _is_told: bool = False

    def is_silent(self, now_s: float, why: str) -> str | None:
        if self._silent_since_s is None:
            self._silent_since_s = now_s
        if self._is_told or now_s - self._silent_since_s < SILENT_S:
            return None
        self._is_told = True
        return (
            f"Serve's controller has said nothing for {now_s - self._silent_since_s:.0f} s ({why}): "
            "requests go on, but units and gateways that are lost are not replaced"
        )

    def answers(self, now_s: float) -> str | None:
        since_s, was_told = self._silent_since_s, self._is_told
        self._silent_since_s, self._is_told = None, False
        if since_s is None or not was_told:
            return None
        return f"Serve's controller answers again, after {now_s - since_s:.0f} s"
