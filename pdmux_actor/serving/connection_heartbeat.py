"""The pulse of a connection, on either side of it, and how long it outlives a peer that went without a word, as a node
does that loses its power.
"""

import asyncio
import socket
from collections.abc import Callable

_MOMENT_S = 1.0  # in which all is read that came while the loop stood


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
        self._stood: tuple[float, float] = (0.0, 0.0)  # for how long, until when

    def start(self) -> None:
        due_s = self._loop.time() + self._period_s
        self._handle = self._loop.call_at(due_s, self._fire, due_s)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def just_stood_s(self) -> float:
        """Returns for how long the loop had been held up, where that ended a moment ago."""
        stood_s, until_s = self._stood
        return stood_s if self._loop.time() - until_s < _MOMENT_S else 0.0

    def _fire(self, due_s: float) -> None:
        now_s = self._loop.time()
        punctual = now_s - due_s < self._period_s
        if not punctual:
            self._stood = now_s - due_s, now_s
        self._on_beat(now_s, punctual)
        if self._handle is not None:
            self.start()


PEER_LOST_S = 20.0
_LONGEST_S = 600.0  # the kernel counts no more than 127 probes
_PROBE_EVERY_S = 5


def bound_silence(transport: asyncio.BaseTransport, *, lost_s: float = PEER_LOST_S) -> None:
    """Has the kernel break the connection when the peer's kernel has acknowledged nothing for `lost_s`, whether or not
    anything was sent or is still to be sent. Without it that is two hours, or a quarter of one. A peer whose process
    stands is not meant: its kernel goes on answering, unless so much was sent that it takes no more.
    """
    connection: socket.socket = transport.get_extra_info("socket")
    if connection.family not in (socket.AF_INET, socket.AF_INET6):  # of one machine: its ends do not go alone
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    lost_s = min(lost_s, _LONGEST_S)
    # Linux has all of them; elsewhere what is missing stays as the system has it.
    for name, value in (
        ("TCP_KEEPIDLE", _PROBE_EVERY_S),
        ("TCP_KEEPINTVL", _PROBE_EVERY_S),
        ("TCP_KEEPCNT", max(1, round(lost_s / _PROBE_EVERY_S) - 1)),
        ("TCP_USER_TIMEOUT", round(lost_s * 1000)),
    ):
        if (option := getattr(socket, name, None)) is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
