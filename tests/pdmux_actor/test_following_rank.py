"""A rank that follows does what it is told of a lane in order, on as many cores as the leader's lane has."""

import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from cpu_rig import DEADLINE_S, make_device

from pdmux_actor.executor.lanes import PinnedThread, available_cores
from pdmux_actor.executor.ranks.following_rank import FollowingRank
from pdmux_actor.executor.ranks.leading_runner import LeadingRunner
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


@pytest.mark.skipif(len(available_cores()) < 2 or sys.platform != "linux", reason="a lane has one set of cores")
@pytest.mark.parametrize("place", [(0, 1), (1, 1), (0, 2)])
def test_leader__of_a_lane_on_some_of_its_cores__tells_the_others_how_many_and_which(place: tuple[int, int]) -> None:
    """Its lane's thread is bound to the first of them, its team's others to one each."""
    told, threads = list[HeadPass](), list[int]()
    cores = available_cores()[:2]
    runner = LeadingRunner(1, {}, group=None, link=SimpleNamespace(tell=told.append), cores=cores)

    def launch() -> None:
        threads.append(torch.get_num_threads())
        with runner._around_head("a", 3):
            pass

    lane = PinnedThread("test-lane", cores[place[0] : sum(place)])
    lane.submit(launch)
    lane.close()

    assert threads == [place[1]]
    assert [(head.first_core, head.num_cores) for head in told] == [place]
