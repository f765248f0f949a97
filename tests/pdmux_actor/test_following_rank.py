"""A rank that follows does what it is told of a lane in order, whichever cores the lane has by then."""

import sys
import threading
import time

import pytest
from cpu_rig import DEADLINE_S, make_device

from pdmux_actor.executor.lanes import available_cores
from pdmux_actor.executor.ranks.following_rank import FollowingRank
from pdmux_actor.executor.ranks.rank_frames import HeadPass
from pdmux_actor.executor.torch_cpu import TorchCpuExecutor


@pytest.mark.skipif(len(available_cores()) < 2 or sys.platform != "linux", reason="a lane has one set of cores")
def test_passes__a_lane_gets_other_cores_while_this_rank_lags__are_done_in_order() -> None:
    """The leader changes cores when its own pass has ended: a slice of a prompt must find what the one before left."""
    began, done = threading.Event(), list[str]()
    all_done = threading.Event()

    class Runner:
        def do(self, told: HeadPass) -> None:
            if told.model == "first":
                began.set()
                time.sleep(0.2)  # the operating system runs something else on its core
            done.append(told.model)
            if len(done) == 2:
                all_done.set()

        def drop_prefill(self, batch_id: int) -> None:
            raise AssertionError("nothing is dropped")

    executor = TorchCpuExecutor(
        kv_pool_bytes=1 << 20,
        block_bytes=4096,
        device=make_device(),
        cores=available_cores()[:2],
        make_runner=lambda number, models: Runner(),
    )
    rank = FollowingRank(executor, answer=lambda told: None, on_failure=lambda: done.append("failed"))
    rank.take(HeadPass(lane=0, first_core=0, num_cores=2, model="first", num_tokens=1))
    assert began.wait(DEADLINE_S)
    rank.take(HeadPass(lane=0, first_core=1, num_cores=1, model="second", num_tokens=1))
    assert all_done.wait(DEADLINE_S)
    rank.close()

    assert done == ["first", "second"]
