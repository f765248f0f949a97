"""Asks Serve's own controller again and again whether it is there, and tells when it is not."""

import asyncio
from collections.abc import Callable

from deploy.control.serve_watch import ServeWatch
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
