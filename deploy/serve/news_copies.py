"""Keeps the newest news of the fleet as they are sent, for all gateways that ask at about the same time."""

import time
from collections.abc import Callable

from router.view import FleetNews, write_news

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
