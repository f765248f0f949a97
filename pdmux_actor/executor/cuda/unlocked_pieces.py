"""Unlocks host memory from which weights were copied to a GPU, a piece at a time, in moments without launches.

NVIDIA's documentation says of cudaHostUnregister that it unmaps the pages, and neither that it waits for the device nor
that it does not; AMD's call of that name does wait. Whoever launches meanwhile may be held up in any case, and a large
model has hundreds of pieces: so its memory goes when no launch is in flight, or at once where somebody needs it.
"""

import threading
from collections import deque

from pdmux_actor.executor.host_copy import HostRegion


class UnlockedPieces:
    """Any thread may call."""

    def __init__(self) -> None:
        self._regions: deque[HostRegion] = deque()
        self._lock = threading.Lock()

    def add(self, region: HostRegion) -> None:
        """Its pieces wait from now on. Nothing copies from or to it any more."""
        self._regions.append(region)

    def unlock_one(self) -> bool:
        """Returns whether a piece waited. None does while another thread unlocks all."""
        if not self._regions or not self._lock.acquire(blocking=False):
            return False
        try:
            return self._unlock_one()
        finally:
            self._lock.release()

    def unlock_all(self) -> None:
        with self._lock:
            while self._unlock_one():
                pass

    def _unlock_one(self) -> bool:
        while self._regions:
            if self._regions[0].let_go_of_a_piece():
                return True
            self._regions.popleft()
        return False
