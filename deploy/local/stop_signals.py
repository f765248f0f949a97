"""Stops a supervised command at signals of people, and at one of its supervisor."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ASKED_TO_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
OWN_STOP = signal.SIGUSR1
"""The supervisor sends it to the main thread: SIGINT may be ignored, as by what a shell's script starts with `&`."""


class StopSignals:
    """The first of these raises KeyboardInterrupt in the main thread. Those that come later find it taking things down:
    they interrupt nothing, and the supervisor, who hears them too, ends all by force. What the command was started to
    ignore, as by nohup, stays ignored.
    """

    def __init__(self) -> None:
        self._before = {number: signal.getsignal(number) for number in (*ASKED_TO_STOP, OWN_STOP)}
        self._is_stopping = False

    def heed(self) -> None:
        """Call again where others may have set handlers of their own, as Ray does."""
        for number, before in self._before.items():
            if before is not signal.SIG_IGN or number == OWN_STOP:
                signal.signal(number, self._stop)

    def restore(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if not self._is_stopping:
            self._is_stopping = True
            raise KeyboardInterrupt


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM, and SIGHUP of a closed terminal, stop as Ctrl-C does, with everything taken down. A SIGHUP that is
    ignored, as by nohup, stays so.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    stopping = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in stopping:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in stopping:
            signal.signal(number, before[number])
