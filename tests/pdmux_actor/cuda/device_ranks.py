"""A unit of two ranks of the CUDA executor on the CPU: the second is a process, gloo sums in NCCL's place."""

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import torch
from cpu_rig import CpuRig
from cuda_rig import BLOCK_BYTES, KV_POOL_BYTES, NUM_SMS, CpuLanes
from patched_language import patched_language

from pdmux_actor.executor.cuda.launch_graphs import LaunchGraphs
from pdmux_actor.executor.ranks.following_cuda_runner import FollowingCudaRunner
from pdmux_actor.executor.ranks.following_rank import FollowingRank
from pdmux_actor.executor.ranks.lane_group import open_lane_groups
from pdmux_actor.executor.ranks.leading_cuda_runner import LeadingCudaRunner
from pdmux_actor.executor.ranks.rank_frames import FromRank, ToRank
from pdmux_actor.executor.ranks.tensor_parallel_executor import TensorParallelExecutor
from pdmux_actor.executor.torch_cuda import TorchCudaExecutor
from pdmux_actor.model_info import ModelInfo
from pdmux_actor.models.rank_share import RankShare
from profiler.gpus.h200 import DEVICE as H200

Result = TypeVar("Result")

_NUM_LANES = 3
_ANSWER_S = 60.0


def _executor(rank: int, make_runner) -> TorchCudaExecutor:
    return TorchCudaExecutor(
        kv_pool_bytes=KV_POOL_BYTES,
        block_bytes=BLOCK_BYTES,
        lanes=CpuLanes(),
        device=replace(H200, num_sms=NUM_SMS),
        graphs=LaunchGraphs(None, 0),
        captures_ahead=False,
        share=RankShare(rank=rank, num_ranks=2),
        make_runner=make_runner,
    )


def follow(connection: Connection, store: str) -> None:
    """The second rank's process."""
    torch.set_num_threads(1)
    groups = open_lane_groups(store, 1, 2, _NUM_LANES)
    failed = threading.Event()
    rank = FollowingRank(
        _executor(1, lambda n, models, graphs, device: FollowingCudaRunner(models, graphs, device, groups[n])),
        answer=lambda told: connection.send_bytes(msgspec.msgpack.encode(told)),
        on_failure=failed.set,
    )
    with patched_language(), suppress(EOFError):
        while not failed.is_set():
            rank.take(msgspec.msgpack.decode(connection.recv_bytes(), type=ToRank))


class PipeLink:
    """Implements RankLink. `ended` has the reasons for which the unit would have ended."""

    num_ranks = 2

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.ended: list[str] = []

    def tell(self, frame: ToRank) -> None:
        self._connection.send_bytes(msgspec.msgpack.encode(frame))

    def call(self, frame: ToRank, meanwhile: Callable[[], Result]) -> tuple[tuple[FromRank, ...], Result]:
        self.tell(frame)
        result = meanwhile()
        assert self._connection.poll(_ANSWER_S), "the other rank does not answer"
        return (msgspec.msgpack.decode(self._connection.recv_bytes(), type=FromRank),), result

    def end_unit(self, reason: str) -> None:
        self.ended.append(reason)

    def close(self) -> None:
        self._connection.close()


class RanksRig(CpuRig):
    """Names blocks as a unit of two ranks does."""

    def __init__(self, executor: TensorParallelExecutor) -> None:
        super().__init__(executor=executor)
        self._free_blocks = np.random.default_rng(0).permutation(executor.total_blocks // 2)

    def _attach(self, info: ModelInfo, max_rows: int) -> ModelInfo:
        each = replace(info.geometry, blocks_per_row=info.geometry.blocks_per_row // 2)
        return super()._attach(replace(info, geometry=each), max_rows)


@contextmanager
def two_device_ranks(folder: Path) -> Iterator[tuple[RanksRig, PipeLink]]:
    ours, theirs = multiprocessing.Pipe()
    store = str(folder / "store")
    process = multiprocessing.get_context("spawn").Process(target=follow, args=(theirs, store), daemon=True)
    process.start()
    theirs.close()
    link = PipeLink(ours)
    groups = open_lane_groups(store, 0, 2, _NUM_LANES)
    own = _executor(
        0,
        lambda n, models, graphs, device: LeadingCudaRunner(n, models, graphs, device, group=groups[n], link=link),
    )
    try:
        yield RanksRig(TensorParallelExecutor(own, link)), link
    finally:
        ours.close()
        process.join(10)
        process.kill()
