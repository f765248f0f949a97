"""A lane: launches run on cores of their own, those on the same cores one after the other."""

import logging
import os
import queue
import sys
import threading
from collections.abc import Callable

import torch

_LOG = logging.getLogger(__name__)

Job = Callable[[], None]


def available_cores() -> tuple[int, ...]:
    """Ids of the cores this process may run on."""
    if sys.platform == "linux":
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


class PinnedThread:
    """A thread, and the OpenMP team torch makes for it, bound to `cores` for life.

    OpenMP workers inherit the affinity of the thread that first needs them and keep it when that thread moves, so a
    thread never changes its cores: each partition has a thread of its own, like a green context on a GPU.
    """

    def __init__(self, name: str, cores: tuple[int, ...]) -> None:
        self._cores = cores
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """`job` must not raise."""
        self._jobs.put(job)

    def close(self) -> None:
        self._jobs.put(None)
        # no deadline: the actor kills a process that does not end
        self._thread.join()

    def _run(self) -> None:
        if sys.platform == "linux":
            try:
                os.sched_setaffinity(0, self._cores)
            except OSError:
                _LOG.warning("cannot bind to cores %s; the lanes will share cores", self._cores, exc_info=True)
        torch.set_num_threads(len(self._cores))
        with torch.inference_mode():
            # no deadline: an idle lane
            while (job := self._jobs.get()) is not None:
                job()


class LaneThread:
    """Jobs on the same cores run in the order of submission, on disjoint cores beside each other. One whose cores
    overlap another one's is submitted when that has ended.
    """

    def __init__(self, name: str, cores: tuple[int, ...]) -> None:
        self._name = name
        self._threads: dict[tuple[int, ...], PinnedThread] = {}
        self._cores = cores

    def submit(self, job: Job, cores: tuple[int, ...]) -> None:
        assert cores, f"the {self._name} lane has no cores in the partition in force"
        self._cores = cores
        self._thread().submit(job)

    def submit_in_place(self, job: Job) -> None:
        """Runs a job on the cores of the job before."""
        self._thread().submit(job)

    def close(self) -> None:
        for thread in self._threads.values():
            thread.close()

    def _thread(self) -> PinnedThread:
        if self._cores not in self._threads:
            name = f"{self._name}-lane-{len(self._cores)}"
            self._threads[self._cores] = PinnedThread(name, self._cores)
        return self._threads[self._cores]
