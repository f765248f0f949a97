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
from pdmux_actor.executor.ranks.following_rank import FollowingExecutor, FollowingRank
from pdmux_actor.executor.ranks.following_runner import FollowingRunner
from pdmux_actor.executor.ranks.lane_group import measured_links, open_lane_groups
from pdmux_actor.executor.ranks.rank_frames import FromRank, RankSettings, ToRank
from pdmux_actor.executor.torch_cpu import TorchCpuExecutor
from pdmux_actor.models.rank_share import RankShare
from pdmux_actor.models.torch_threads import use_torch_threads
from pdmux_actor.serving.engine_log import log_to_actor
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
        executor = _open_executor(settings)
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


def _open_executor(settings: RankSettings) -> FollowingExecutor:
    """Meets the other ranks. Raises DeviceUnavailable."""
    share = RankShare(rank=settings.rank, num_ranks=settings.num_ranks)
    if settings.device is None:
        from pdmux_actor.serving.cuda_ranks import open_following_cuda_executor  # needs triton

        return open_following_cuda_executor(settings, share)
    groups = open_lane_groups(settings.store, settings.rank, settings.num_ranks, settings.num_lanes)
    measured_links(groups[0], settings.device, settings.num_ranks)
    use_torch_threads(1)  # the cores are the lanes'
    return TorchCpuExecutor(
        kv_pool_bytes=settings.kv_pool_bytes,
        block_bytes=settings.block_bytes,
        device=settings.device,
        cores=settings.cores,
        share=share,
        make_runner=lambda number, models: FollowingRunner(models, groups[number]),
    )


if __name__ == "__main__":
    main(sys.argv[1:])
