"""Gateways wait here for a view of the fleet, or for one that tells them something new, and share copies of it."""

import time
from collections.abc import Callable

from deploy.control.control_loop import ControlLoop
from router.live_view import ChangeSignal
from router.view import FleetNews, write_news

_LOOK_S = 1.0  # what only time changes (a silent unit is gone, a gateway) is looked for so often
_WARM_UP_LOOK_S = 0.1


class WaitingGateways:
    def __init__(self, loop: ControlLoop, clock: Callable[[], float]) -> None:
        """`clock` is the control loop's."""
        self._loop = loop
        self._clock = clock
        self._version: tuple[int, ...] | None = None
        self._signal = ChangeSignal()

    def look(self) -> None:
        """Wakes those that wait, if there is something new. To be called when the control loop was told anything."""
        version = self._loop.view_version(self._clock())
        if version != self._version:
            self._version = version
            self._signal.tell()

    async def until_view(self) -> tuple[int, ...]:
        """Returns the version of the view as soon as there is one."""
        # no deadline: a fresh control loop waits for units for a few seconds only
        while (version := self._loop.view_version(self._clock())) is None:
            await self._signal.changed_within(_WARM_UP_LOOK_S)
        return version

    async def until_news(self, gateway_id: str, known: tuple[int, ...] | None, wait_s: float) -> tuple[int, ...]:
        """Returns when the view has another version than `known`, and after `wait_s` at the latest."""
        until_s = self._clock() + wait_s
        while (version := await self.until_view()) == known and (left_s := until_s - self._clock()) > 0:
            await self._signal.changed_within(min(left_s, _LOOK_S))
            self._loop.hear_waiting(gateway_id, self._clock())
        return version


_MOST_SHARE = 0.1  # of the control loop's time


class NewsCopies:
    """A copy is used for so long that making copies takes at most a tenth of the time: milliseconds for a small fleet,
    a third of a second for a thousand units, whose reports change all the time.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._body = b""
        self._version: tuple[int, ...] | None = None
        self._began_s = self._good_until_s = float("-inf")

    def copy_for(self, known: tuple[int, ...] | None) -> bytes | None:
        """`known` is the version that a gateway has. None: there is no copy that is news to it and new enough; one is
        to be made now, for `copied`.
        """
        self._began_s = self._clock()
        is_good = self._version is not None and self._version != known and self._began_s < self._good_until_s
        return self._body if is_good else None

    def copied(self, news: FleetNews) -> bytes:
        self._body, self._version = write_news(news), news.version
        ended_s = self._clock()
        self._good_until_s = ended_s + (ended_s - self._began_s) / _MOST_SHARE
        return self._body
