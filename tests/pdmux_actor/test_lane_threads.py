"""The threads of lanes: each set of cores has one, with a team of its own, which all lanes share."""

import os
import sys
import threading
import time
import weakref

import pytest
import torch
from cpu_rig import DEADLINE_S, make_device

from pdmux_actor.executor import lanes
from pdmux_actor.executor.lanes import LaneThread, PinnedThread, PinnedThreads, available_cores
from pdmux_actor.executor.torch_cpu import TorchCpuExecutor
from pdmux_actor.models.torch_threads import use_torch_threads
from pdmux_actor.scheduling.launch import Lane


@pytest.fixture(scope="module", autouse=True)
def lanes_take_turns_with_tests() -> None:
    """Not here: that lanes give way is what is tested."""


@pytest.mark.skipif(sys.platform != "linux", reason="core affinity exists on Linux only")
def test_pinned_thread__parallel_work__stays_on_its_cores() -> None:
    cores = available_cores()[-1:]
    before = set(os.listdir("/proc/self/task"))
    seen: dict[str, object] = {}
    done = threading.Event()
    thread = PinnedThread("test-lane", cores)

    def job() -> None:
        seen["threads"] = torch.get_num_threads()
        seen["inference"] = torch.is_inference_mode_enabled()
        torch.rand(600, 600) @ torch.rand(600, 600)
        new_threads = set(os.listdir("/proc/self/task")) - before
        seen["affinities"] = {tuple(sorted(os.sched_getaffinity(int(tid)))) for tid in new_threads}
        done.set()

    thread.submit(job)
    assert done.wait(DEADLINE_S)
    thread.close()

    assert seen == {"threads": 1, "inference": True, "affinities": {cores}}


@pytest.mark.skipif(sys.platform != "linux", reason="core affinity exists on Linux only")
@pytest.mark.skipif(len(available_cores()) < 2, reason="a thread's core shows only where there is another")
def test_pinned_thread__team_of_several__has_a_core_for_each_thread() -> None:
    cores = available_cores()[:2]
    before = set(os.listdir("/proc/self/task"))
    affinities: set[tuple[int, ...]] = set()

    def job() -> None:
        team = set(os.listdir("/proc/self/task")) - before
        affinities.update(tuple(sorted(os.sched_getaffinity(int(tid)))) for tid in team)

    thread = PinnedThread("test-lane", cores)
    thread.submit(job)
    thread.close()

    assert affinities == {(core,) for core in cores}


def test_pinned_thread__idle__keeps_nothing_of_its_last_job() -> None:
    class Pool:
        pass

    pool = Pool()
    kept = weakref.ref(pool)
    thread = PinnedThread("test-lane", available_cores()[:1])
    thread.submit(lambda pool=pool: None)
    del pool

    deadline_s = time.monotonic() + DEADLINE_S
    while kept() is not None and time.monotonic() < deadline_s:
        time.sleep(0.01)

    assert kept() is None
    thread.close()


def test_lanes__on_the_same_cores__share_their_thread_and_so_its_team() -> None:
    threads, cores, seen = PinnedThreads(), available_cores(), dict[str, int]()
    prefill, decode = (LaneThread(name, cores, threads) for name in ("prefill", "decode"))
    prefill.submit(lambda: seen.update(prefill=threading.get_ident()), cores)
    decode.submit(lambda: seen.update(decode=threading.get_ident()), cores)
    prefill.submit(lambda: seen.update(on_one=threading.get_ident()), cores[:1])
    threads.close()

    assert seen["prefill"] == seen["decode"]
    assert (seen["on_one"] == seen["prefill"]) is (len(cores) == 1)


@pytest.mark.skipif(len(available_cores()) < 2, reason="a core alone is one set")
def test_threads__beyond_what_a_process_may_have__those_go_that_idled_for_longest_and_no_busy_one(monkeypatch) -> None:
    monkeypatch.setattr(lanes, "_MOST_THREADS", 3)
    threads, (one, other) = PinnedThreads(), [(core,) for core in available_cores()[:2]]
    may_end, kept = threading.Event(), dict[tuple[int, ...], threading.Thread]()

    def ran_on(cores: tuple[int, ...]) -> threading.Thread:
        done = threading.Event()
        threads.on(cores).submit(lambda: (kept.update({cores: threading.current_thread()}), done.set()))
        assert done.wait(DEADLINE_S)
        deadline_s = time.monotonic() + DEADLINE_S
        while not threads.on(cores).is_idle and time.monotonic() < deadline_s:
            time.sleep(0.001)
        return kept[cores]

    busy, idle = ran_on(one), ran_on(other)
    threads.on(one).submit(lambda: may_end.wait(DEADLINE_S))
    whole = ran_on((*one, *other))
    assert (busy.is_alive(), idle.is_alive(), whole.is_alive()) == (True, False, True)

    may_end.set()
    assert ran_on(one) is busy
    assert ran_on(other).is_alive()
    assert (busy.is_alive(), whole.is_alive()) == (True, False)
    threads.close()


def test_executor__threads_of_others__outlive_it() -> None:
    shared, ran_on = PinnedThreads(), list[threading.Thread]()
    executors = [
        TorchCpuExecutor(kv_pool_bytes=1 << 20, block_bytes=4096, device=make_device(), threads=shared)
        for _ in range(2)
    ]
    for executor in executors:
        done = threading.Event()
        executor.run(lambda done=done: (ran_on.append(threading.current_thread()), done.set()), Lane.DECODE, 0, 1)
        assert done.wait(DEADLINE_S)
        executor.close()

    assert ran_on[0] is ran_on[1]
    shared.close()
    assert not ran_on[0].is_alive()


def test_use_torch_threads__threads_begun_later__work_alone_and_lanes_do_not() -> None:
    before, cores, seen = torch.get_num_threads(), available_cores(), {}
    try:
        use_torch_threads(1)
        loader = threading.Thread(target=lambda: seen.update(loader=torch.get_num_threads()))
        loader.start()
        loader.join()
        lane = PinnedThread("test-lane", cores)
        lane.submit(lambda: seen.update(lane=torch.get_num_threads()))
        lane.close()
    finally:
        torch.set_num_threads(before)

    assert seen == {"loader": 1, "lane": len(cores)}


@pytest.mark.skipif(sys.platform != "linux", reason="sched(7) is Linux's")
def test_lane__its_thread_and_team__never_run_before_what_wakes_on_their_cores() -> None:
    before = set(os.listdir("/proc/self/task"))
    threads = PinnedThreads()
    computed = threading.Event()

    def compute() -> None:
        torch.zeros(1 << 20).exp_()
        computed.set()

    threads.on(available_cores()).submit(compute)
    assert computed.wait(DEADLINE_S)
    policies = {os.sched_getscheduler(int(task)) for task in set(os.listdir("/proc/self/task")) - before}
    threads.close()

    assert policies == {os.SCHED_BATCH}
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
