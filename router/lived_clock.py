"""The clock of who watches others: it counts the seconds that the process has lived through."""

import asyncio
import threading
import time

_TICK_S = 0.5
_STOOD_S = 2.0  # a tick that is so late was held up
_JUMP_S = 1.0


class LivedClock:
    """Stands while its process does: one that was stopped, whose event loop was blocked, whose machine was suspended.
    What others sent meanwhile lies unread, and none of them was silent. `live` runs on the event loop that is meant.
    """

    def __init__(self) -> None:
        self._looking = threading.Lock()
        self._seen_s = time.monotonic()
        self._stood_s = 0.0
        self._epoch_s = time.time() - self._seen_s

    def now_s(self) -> float:
        with self._looking:
            seen_s = time.monotonic()
            if seen_s - self._seen_s > _STOOD_S:
                self._stood_s += seen_s - self._seen_s
            self._seen_s = seen_s
            return seen_s - self._stood_s

    def stood_s(self) -> float:
        """Returns for how long it has stood in all."""
        self.now_s()
        return self._stood_s

    def epoch_s(self) -> float:
        """Returns what makes the time of day of `now_s`: the same until this clock stands or the machine's is set."""
        epoch_s = time.time() - self.now_s()
        if abs(epoch_s - self._epoch_s) > _JUMP_S:
            self._epoch_s = epoch_s
        return self._epoch_s

    async def live(self) -> None:
        """Does not end."""
        while True:
            self.now_s()
            await asyncio.sleep(_TICK_S)
