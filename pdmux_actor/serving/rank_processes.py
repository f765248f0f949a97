"""The other ranks of a tensor-parallel unit, each a process of the engine process."""

import logging
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from pdmux_actor.executor.cpu_device import measure_cpu
from pdmux_actor.executor.lanes import available_cores
from pdmux_actor.executor.ranks.lane_group import measured_links, open_lane_groups
from pdmux_actor.executor.ranks.leading_runner import LeadingRunner
from pdmux_actor.executor.ranks.rank_frames import FromRank, PartCall, RankSettings, ToRank
from pdmux_actor.executor.ranks.tensor_parallel_executor import TensorParallelExecutor
from pdmux_actor.executor.torch_cpu import TorchCpuExecutor
from pdmux_actor.models.rank_share import RankShare
from pdmux_actor.serving.frames import FrameReader, framed
from pdmux_actor.serving.own_program import own_program

logger = logging.getLogger(__name__)

_PROGRAM = "pdmux_actor.serving.rank_process"
_RECEIVE_BYTES = 256 * 1024
_EXIT_LOST = 70  # EX_SOFTWARE of sysexits.h
_EXIT_TIMEOUT_S = 5.0

Result = TypeVar("Result")


class RankProcesses:
    """Implements executor.ranks.rank_link.RankLink. A rank whose socket ends, ends this process: the actor then sees an
    engine that died, and its streams go on elsewhere.

    Start it on a thread that lives as long as this process: the kernel ends the ranks with the one that started them.
    """

    def __init__(self, settings: Sequence[RankSettings], environments: Sequence[Mapping[str, str]] = ()) -> None:
        """`environments`: what each rank's process has beside, or instead of, this one's."""
        self.num_ranks = len(settings) + 1
        self._sending = threading.Lock()
        self._answers: queue.SimpleQueue[FromRank] = queue.SimpleQueue()
        self._closing = False
        self._processes: list[subprocess.Popen[bytes]] = []
        self._sockets: list[socket.socket] = []
        for of_rank, beside in zip(settings, environments or [{}] * len(settings), strict=True):
            ours, theirs = socket.socketpair()
            with theirs:
                arguments = (str(theirs.fileno()), msgspec.json.encode(of_rank).decode())
                process = subprocess.Popen(
                    [*own_program(_PROGRAM), *arguments],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, **beside},
                )
            self._processes.append(process)
            self._sockets.append(ours)
            threading.Thread(target=self._read, args=(of_rank.rank, ours), name="rank-answers", daemon=True).start()

    def tell(self, frame: ToRank) -> None:
        data = framed(frame)
        with self._sending:
            for connection in self._sockets:
                try:
                    connection.sendall(data)
                except OSError as error:
                    self.end_unit(f"a rank takes nothing any more: {error}")

    def call(self, frame: PartCall, meanwhile: Callable[[], Result]) -> tuple[tuple[FromRank, ...], Result]:
        self.tell(frame)
        try:
            result = meanwhile()
        finally:
            # A rank that ends, ends this process.
            # no deadline: the actor kills an engine whose model does not load or leave within engine.watch.load_s
            answers = tuple(self._answers.get() for _ in self._sockets)
        return answers, result

    def end_unit(self, reason: str) -> None:
        if self._closing:
            return
        logger.error("this unit of several ranks ends", extra={"ranks": self.num_ranks, "reason": reason})
        sys.stderr.flush()
        os._exit(_EXIT_LOST)

    def close(self) -> None:
        self._closing = True
        for connection in self._sockets:
            connection.shutdown(socket.SHUT_WR)
        for process in self._processes:
            try:
                process.wait(_EXIT_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()

    def _read(self, rank: int, connection: socket.socket) -> None:
        answers: FrameReader[FromRank] = FrameReader(FromRank)
        try:
            # no deadline: a rank speaks only when it is called, and its end shows here
            while data := connection.recv(_RECEIVE_BYTES):
                for answer in answers.feed(data):
                    self._answers.put(answer)
        except OSError as error:
            logger.info("the socket of a rank broke", extra={"rank": rank, "error": str(error)})
        self.end_unit(f"the process of rank {rank} has ended")


def open_tensor_parallel_executor(
    *,
    num_ranks: int,
    num_lanes: int,
    kv_pool_bytes: int,
    block_bytes: int,
    num_cores: int | None = None,
    default_dtype: str | None = None,
    shares_cores: bool = False,
) -> TensorParallelExecutor:
    """Starts the other ranks. Each has its part of the cores, so that none waits for another's work; where there are
    fewer cores than ranks, or they are to be shared, all have all.
    """
    cores = available_cores()[:num_cores]
    each = len(cores) // num_ranks
    shares_cores = shares_cores or each == 0
    cores_of = [cores if shares_cores else cores[rank * each : (rank + 1) * each] for rank in range(num_ranks)]
    device = measure_cpu(len(cores_of[0]))
    with tempfile.TemporaryDirectory(prefix="muxfleet-ranks-") as folder:
        of_ranks = [
            RankSettings(
                rank=rank,
                num_ranks=num_ranks,
                num_lanes=num_lanes,
                store=str(Path(folder) / "store"),
                device=device,
                kv_pool_bytes=kv_pool_bytes // num_ranks,
                block_bytes=block_bytes,
                cores=cores_of[rank],
            )
            for rank in range(num_ranks)
        ]
        ranks = RankProcesses(of_ranks[1:])
        groups = open_lane_groups(of_ranks[0].store, 0, num_ranks, num_lanes)
        linked = measured_links(groups[0], device, num_ranks)
    own = TorchCpuExecutor(
        kv_pool_bytes=kv_pool_bytes // num_ranks,
        block_bytes=block_bytes,
        device=linked,
        cores=cores_of[0],
        share=RankShare(rank=0, num_ranks=num_ranks),
        make_runner=lambda number, models: LeadingRunner(
            number, models, group=groups[number], link=ranks, cores=cores_of[0]
        ),
    )
    return TensorParallelExecutor(own, ranks, default_dtype=default_dtype)
