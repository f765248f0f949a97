"""The engine process's side of the wire: sends without making the engine thread wait for a slow actor."""

import logging
import socket
import threading
import time
from collections.abc import Sequence

from pdmux_actor.messages import TokenEvent
from pdmux_actor.serving.commands import Notice, Tokens, WeightsRead
from pdmux_actor.serving.frames import framed

logger = logging.getLogger(__name__)

_TELL_EVERY_S = 0.25
_LOG_EVERY_S = 5.0


class NoticeSender:
    """Thread-safe. Writes at once when the socket takes it; otherwise a thread writes what has piled up, in order."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._backlog = bytearray()
        self._writing = False  # the thread is inside a blocking write: nobody else may write
        self._broken = False
        self._changed = threading.Condition()
        threading.Thread(target=self._write_backlog, name="notice-sender", daemon=True).start()

    def send(self, notice: Notice) -> None:
        data = framed(notice)
        with self._changed:
            if self._broken:
                return  # the actor is gone; the reader ends the process
            if not self._backlog and not self._writing:
                data = data[self._send_now(data) :]
            if data:
                self._backlog += data
                self._changed.notify_all()

    def send_tokens(self, events: Sequence[TokenEvent]) -> None:
        self.send(Tokens(tuple(events)))

    def flush(self, timeout_s: float) -> bool:
        """Waits until everything is written; False when it is not after `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: self._broken or not (self._backlog or self._writing), timeout_s)

    def _send_now(self, data: bytes) -> int:
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError:
            self._broken = True
            return len(data)

    def _write_backlog(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: bool(self._backlog))
                data = bytes(self._backlog)
                self._backlog.clear()
                self._writing = True
            try:
                self._socket.sendall(data)
            except OSError:
                with self._changed:
                    self._broken = True
                    self._writing = False
                    self._changed.notify_all()
                return


class ReadProgress:
    """Is told at every tensor, by one thread at a time, how far reading a model is, and passes on to the actor
    and the log what a person can follow.
    """

    def __init__(self, model: str, sender: NoticeSender) -> None:
        self._model = model
        self._sender = sender
        self._began_s = self._logged_s = time.monotonic()
        self._told_s = float("-inf")

    def note(self, done_bytes: int, total_bytes: int) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s >= _TELL_EVERY_S:
            self._told_s = now_s
            self._sender.send(WeightsRead(self._model, done_bytes, total_bytes))
        if now_s - self._logged_s >= _LOG_EVERY_S:
            self._logged_s = now_s
            read = {"done_bytes": done_bytes, "total_bytes": total_bytes, "elapsed_s": round(now_s - self._began_s, 1)}
            logger.info("weights are read", extra={"model": self._model, **read})
