"""Tells whether one of many processes has ended, without a look at each: by Linux's file descriptors of processes."""

import os
import select
from collections.abc import Set

import psutil


class ProcessEnds:
    """Not thread-safe. Where descriptors are missing or have run out, it cannot tell: `is_complete` is False then."""

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
