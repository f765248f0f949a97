"""A rank's own process. A tensor-parallel unit's engine process starts it and talks to it over an inherited socket:

    python -m pdmux_actor.serving.rank_process FD SETTINGS_JSON

It ends with the engine process: at end-of-file on the socket, or by the kernel's parent-death signal.
"""

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence

import msgspec

from pdmux_actor.errors import DeviceUnavailable
from pdmux_actor.executor.ranks.following_rank import FollowingRank
from pdmux_actor.executor.ranks.rank_frames import FromRank, RankSettings, ToRank
from pdmux_actor.serving.engine_log import log_to_actor
from pdmux_actor.serving.following_executor import open_following_executor
from pdmux_actor.serving.frames import FrameReader, framed
from pdmux_actor.serving.parent_death import die_with_parent

_RECEIVE_BYTES = 256 * 1024
_EXIT_FAILED = 70  # EX_SOFTWARE of sysexits.h

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str]) -> None:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log_to_actor()  # by way of the engine process, whose standard error it has
    connection = socket.socket(fileno=int(arguments[0]))
    settings = msgspec.json.decode(arguments[1], type=RankSettings)
    try:
        executor = open_following_executor(settings)
    except DeviceUnavailable as error:
        sys.exit(str(error))
    sending = threading.Lock()

    def answer(told: FromRank) -> None:
        with sending:
            connection.sendall(framed(told))

    rank = FollowingRank(executor, answer=answer, on_failure=lambda: os._exit(_EXIT_FAILED))
    frames: FrameReader[ToRank] = FrameReader(ToRank)
    try:
        # no deadline: the leader is silent while there is nothing to do
        while data := connection.recv(_RECEIVE_BYTES):
            for frame in frames.feed(data):
                rank.take(frame)
    except ConnectionError:
        pass  # the same as end-of-file: the leader is gone
    except Exception:
        logger.exception("a rank cannot go on", extra={"rank": settings.rank})
        os._exit(_EXIT_FAILED)
    os._exit(0)  # a lane may wait in a sum whose leader has gone


if __name__ == "__main__":
    main(sys.argv[1:])
