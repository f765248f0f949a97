"""The processes that this one started, and those that they started."""

import threading
from collections.abc import Sequence

import psutil

from deploy.local.process_ends import ProcessEnds

_ROUNDS = 5
_ROUND_S = 2.0


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
