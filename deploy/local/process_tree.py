"""The processes that this one started, and those that they started."""

import os
import select
import threading
from collections.abc import Sequence, Set

import psutil

_ROUNDS = 5
_ROUND_S = 2.0


class ProcessEnds:
    """Tells whether one of many processes has ended, without a look at each: by Linux's file descriptors of processes.

    Not thread-safe. Where descriptors are missing or have run out, it cannot tell: `is_complete` is False then.
    """

    def __init__(self) -> None:
        self._descriptors: dict[psutil.Process, int] = {}
        self.is_complete = False

    def watch(self, processes: Set[psutil.Process]) -> None:
        """These from now on, and no others."""
        for process in self._descriptors.keys() - processes:
            os.close(self._descriptors.pop(process))
        self.is_complete = hasattr(os, "pidfd_open")
        for process in processes - self._descriptors.keys() if self.is_complete else ():
            try:
                self._descriptors[process] = os.pidfd_open(process.pid)
            except OSError:
                self.is_complete = False

    def any_has(self) -> bool:
        if not self._descriptors:
            return False
        poll = select.poll()
        for descriptor in self._descriptors.values():
            poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        self.watch(set())


class ProcessTree:
    """Also those whose parent has ended meanwhile, if `look` saw them before."""

    def __init__(self) -> None:
        self._root = psutil.Process()
        self._seen: set[psutil.Process] = set()
        self._ends = ProcessEnds()
        self._lock = threading.Lock()

    def look(self) -> Sequence[psutil.Process]:
        """Returns the processes that run now. A process that has ended and waits for its parent to take note does not
        run.
        """
        with self._lock:
            self._seen.update(self._root.children(recursive=True))
            self._seen = {p for p in self._seen if _runs(p)}
            self._ends.watch(self._seen)
            return tuple(self._seen)

    def is_worth_a_look(self) -> bool:
        """Says whether one of those that ran at the last look has ended, which costs a hundredth of a look; or whether
        that cannot be known.
        """
        with self._lock:
            return not self._ends.is_complete or self._ends.any_has()

    def close(self) -> None:
        """Nobody will ask any more."""
        with self._lock:
            self._ends.close()

    def kill(self) -> None:
        """Returns when none is left, or after some seconds. They may start others meanwhile: hence the rounds."""
        for _ in range(_ROUNDS):
            running = self.look()
            if not running:
                return
            for process in running:
                try:
                    process.kill()
                except psutil.Error:  # it has ended by itself
                    continue
            psutil.wait_procs(running, timeout=_ROUND_S)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
