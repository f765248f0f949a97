"""A lane: launches run on cores of their own, those on the same cores one after the other."""

import logging
import os
import queue
import sys
import threading
from collections.abc import Callable

import torch

from pdmux_actor.models.torch_threads import use_torch_threads

_LOG = logging.getLogger(__name__)

Job = Callable[[], None]

# Of all teams: every share of 32 cores has its own; those of 128 cores took 16,384, more than containers may have.
_MOST_THREADS = 1024
_PARALLEL_ELEMENTS = 1 << 16  # torch has the whole team work from half as many


def available_cores() -> tuple[int, ...]:
    """Ids of the cores this process may run on."""
    if sys.platform == "linux":
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


class PinnedThread:
    """A thread, and the OpenMP team torch makes for it, bound to `cores` for life, each thread to one of them.

    A team that may move within its cores is moved: what runs for a moment on one of them, as the gateway does, drives a
    thread onto the core of the next, and both wait for each other. Its threads keep the cores they began with, so each
    partition has a thread of its own, like a green context on a GPU.
    """

    def __init__(self, name: str, cores: tuple[int, ...]) -> None:
        self._cores = cores
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._submitted = self._ended = 0  # each is counted by one thread
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """`job` must not raise."""
        self._submitted += 1
        self._jobs.put(job)

    @property
    def is_idle(self) -> bool:
        return self._ended == self._submitted

    def close(self) -> None:
        self._jobs.put(None)
        # no deadline: the actor kills a process that does not end
        self._thread.join()

    def _run(self) -> None:
        if sys.platform == "linux":
            _let_others_begin_at_once()
            try:
                _bind_team(self._cores)
            except OSError:
                _LOG.warning("cannot bind to cores %s; the lanes will share cores", self._cores, exc_info=True)
        use_torch_threads(len(self._cores))
        with torch.inference_mode():
            # no deadline: an idle lane
            while (job := self._jobs.get()) is not None:
                job()
                self._ended += 1
                del job  # with what it holds, an executor with its pool and models: the lane may idle for long


class PinnedThreads:
    """The threads of a process, one for each set of cores that a lane has had, which the lanes of its executors share.
    On machines of many cores those go that have idled for longest.

    libgomp lets a team stay awake until its next product only while the teams of a process have no more threads than
    there are cores, and waking one takes as long as a product of a few rows: where each lane had threads of its own for
    all cores, a decode step of one sequence of a 100 M model took 27 ms on two cores instead of 18
    (docs/measurements/engine.md).
    """

    def __init__(self) -> None:
        self._threads: dict[tuple[int, ...], PinnedThread] = {}

    def on(self, cores: tuple[int, ...]) -> PinnedThread:
        thread = self._threads.pop(cores, None)
        if thread is None:
            self._make_room(len(cores))
            thread = PinnedThread(f"cores-{'-'.join(map(str, cores))}", cores)
        self._threads[cores] = thread  # behind those that were used before
        return thread

    def close(self) -> None:
        while self._threads:
            self._threads.popitem()[1].close()

    def _make_room(self, num_threads: int) -> None:
        num_threads += sum(map(len, self._threads))
        for cores in [cores for cores, thread in self._threads.items() if thread.is_idle]:
            if num_threads <= _MOST_THREADS:
                return
            self._threads.pop(cores).close()
            num_threads -= len(cores)


class LaneThread:
    """Jobs on the same cores run in the order of submission, on disjoint cores beside each other. One whose cores
    overlap another one's is submitted when that has ended.
    """

    def __init__(self, name: str, cores: tuple[int, ...], threads: PinnedThreads) -> None:
        self._name = name
        self._cores = cores
        self._threads = threads

    def submit(self, job: Job, cores: tuple[int, ...]) -> None:
        assert cores, f"the {self._name} lane has no cores in the partition in force"
        self._cores = cores
        self._threads.on(cores).submit(job)

    def submit_in_place(self, job: Job) -> None:
        """Runs a job on the cores of the job before."""
        self._threads.on(self._cores).submit(job)


def _let_others_begin_at_once() -> None:
    """Has Linux take the calling thread, and those it starts, for ones that compute and never for ones that answer
    (SCHED_BATCH, sched(7)): what wakes on their cores, as the gateway does with each token, begins at once. Otherwise
    it waits for up to 3 ms, at each hop from the engine to the client. Their share of the cores stays what it was.
    """
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _bind_team(cores: tuple[int, ...]) -> None:
    """Begins the calling thread's OpenMP team, whose threads inherit the core of the one that begins them: the team
    grows by one thread on each core, and the calling thread ends on the first. Raises OSError.
    """
    for num_threads, core in enumerate(cores[1:], 2):
        os.sched_setaffinity(0, (core,))
        use_torch_threads(num_threads)
        torch.zeros(_PARALLEL_ELEMENTS)
    os.sched_setaffinity(0, cores[:1])
