"""The pulse of a frame connection, on either side of it."""

import asyncio
from collections.abc import Callable


class ConnectionHeartbeat:
    """Calls `on_beat(now_s, punctual)` every `period_s` from `start` to `stop`.

    It is not punctual when the loop itself was held up: the peer's frames may then lie unread in the socket, and its
    silence is to be judged next time.
    """

    def __init__(self, period_s: float, on_beat: Callable[[float, bool], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._period_s = period_s
        self._on_beat = on_beat
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        due_s = self._loop.time() + self._period_s
        self._handle = self._loop.call_at(due_s, self._fire, due_s)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self, due_s: float) -> None:
        now_s = self._loop.time()
        self._on_beat(now_s, now_s - due_s < self._period_s)
        if self._handle is not None:
            self.start()
