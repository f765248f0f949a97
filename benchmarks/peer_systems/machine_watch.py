"""How many cores others kept busy while a block ran, stolen time included."""

import os
import time

import psutil
from peer_systems.serving import marked_cpu_s


class MachineWatch:
    """Implements blocks.ForeignLoad and serving.ServingWatch. What processes take to end is seen by nobody: they can be
    counted only while they are there, and in a next start's time it would be others'.
    """

    def __init__(self) -> None:
        self._started_s, self._busy_s, self._own_s = 0.0, 0.0, 0.0
        self.begin()

    def begin(self) -> None:
        self._most_cores = 0.0

    def starting(self) -> None:
        self._started_s, self._busy_s, self._own_s = time.monotonic(), _busy_s(), _own_cpu_s()

    def stopping(self) -> None:
        own_s = sum(marked_cpu_s().values()) + _own_cpu_s() - self._own_s
        elapsed_s = time.monotonic() - self._started_s
        self._most_cores = max(self._most_cores, (_busy_s() - self._busy_s - own_s) / elapsed_s)

    def cores(self) -> float:
        return self._most_cores


def _busy_s() -> float:
    times = psutil.cpu_times()
    return times.user + times.nice + times.system + times.irq + times.softirq + times.steal


def _own_cpu_s() -> float:
    """This process and the clients that it has waited for."""
    return sum(os.times()[:4])
