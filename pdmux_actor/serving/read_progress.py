"""Tells the actor and the log how far reading a model's weights is."""

import logging
import time

from pdmux_actor.serving.commands import WeightsRead
from pdmux_actor.serving.notice_sender import NoticeSender

logger = logging.getLogger(__name__)

_TELL_EVERY_S = 0.25
_LOG_EVERY_S = 5.0


class ReadProgress:
    """Is told of every tensor, by one thread at a time, and passes on what a person can follow."""

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
