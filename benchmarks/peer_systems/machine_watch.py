"""How many cores others kept busy while a block ran, stolen time included."""

import os
import threading
import time

import psutil
from peer_systems.serving import marked_cpu_s

_LOOK_S = 2.0  # some 15 ms each


class MachineWatch:
    """Implements blocks.ForeignLoad and serving.ServingWatch. What processes take to end is seen by nobody: they can be
    counted only while they are there, and in a next start's time it would be others'.
    """

    def __init__(self) -> None:
        self._started_s, self._busy_s, self._own_s = 0.0, 0.0, 0.0
        self._seen: dict[int, float] = {}  # by process, those that have ended too
        self._over = threading.Event()
        self.begin()

    def begin(self) -> None:
        self._most_cores = 0.0

    def starting(self) -> None:
        self._started_s, self._busy_s, self._own_s = time.monotonic(), _busy_s(), _own_cpu_s()
        self._over.set()  # of a start that came to nothing
        self._seen, self._over = {}, threading.Event()
        threading.Thread(target=self._look_now_and_then, args=(self._over,), daemon=True).start()

    def look(self) -> float:
        """Returns what the processes have used. Ray's workers end while others run, and nobody waits for them: what
        they had used is known from the last look.
        """
        now = marked_cpu_s()
        self._seen |= {pid: own_s for pid, (own_s, _) in now.items()}
        return max(sum(map(sum, now.values())), sum(self._seen.values()))

    def stopping(self) -> None:
        self._over.set()
        own_s = self.look() + _own_cpu_s() - self._own_s
        elapsed_s = time.monotonic() - self._started_s
        self._most_cores = max(self._most_cores, (_busy_s() - self._busy_s - own_s) / elapsed_s)

    def cores(self) -> float:
        return self._most_cores

    def _look_now_and_then(self, over: threading.Event) -> None:
        while not over.wait(_LOOK_S):
            self.look()


def _busy_s() -> float:
    times = psutil.cpu_times()
    return times.user + times.nice + times.system + times.irq + times.softirq + times.steal


def _own_cpu_s() -> float:
    """This process and the clients that it has waited for."""
    return sum(os.times()[:4])
