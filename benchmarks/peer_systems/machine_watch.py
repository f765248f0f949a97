"""How many cores others kept busy while a block ran, stolen time included."""

import os
import time

import psutil
from peer_systems.serving import marked_cpu_s


class MachineWatch:
    """Implements blocks.ForeignLoad. A block ends its processes itself: `note` counts them while they are there.

    `without_niced`: work of nice 1 and above is not counted, the system's own neither.
    """

    def __init__(self, *, without_niced: bool = False) -> None:
        self._without_niced = without_niced
        self.begin()

    def begin(self) -> None:
        self._most_cores = 0.0
        self._restart()

    def note(self) -> None:
        """Just before a block's processes end."""
        marked_s = sum(marked_cpu_s(without_niced=self._without_niced).values())
        own_s = marked_s + _own_cpu_s() - self._own_s
        elapsed_s = time.monotonic() - self._started_s
        self._most_cores = max(self._most_cores, (self._read_busy_s() - self._busy_s - own_s) / elapsed_s)
        self._restart()

    def cores(self) -> float:
        return self._most_cores

    def _restart(self) -> None:
        self._started_s, self._busy_s, self._own_s = (
            time.monotonic(),
            self._read_busy_s(),
            _own_cpu_s(),
        )

    def _read_busy_s(self) -> float:
        times = psutil.cpu_times()
        busy_s = times.user + times.system + times.irq + times.softirq + times.steal
        return float(busy_s if self._without_niced else busy_s + times.nice)


def _own_cpu_s() -> float:
    """This process and the clients that it has waited for."""
    return sum(os.times()[:4])
