"""Times launches on SGLang's streams."""

import time
from collections import deque
from typing import Any

import torch


class LaunchClock:
    """Pairs of CUDA events around launches. Slices end in the order of their launches."""

    def __init__(self) -> None:
        self._slices: deque[tuple[Any, Any]] = deque()
        self._decode: tuple[Any, Any] | None = None

    @property
    def slices_on_lane(self) -> int:
        return len(self._slices)

    @staticmethod
    def now_s() -> float:
        """The machine's monotonic clock: requests tell on it when they arrived."""
        return time.monotonic()

    @staticmethod
    def mark() -> Any:
        """An event on the current stream."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch has no types there
        event.record()
        return event

    def slice_launched(self, began: Any) -> None:
        self._slices.append((began, self.mark()))

    def decode_launched(self, began: Any) -> None:
        self._decode = (began, self.mark())

    def wait_for_oldest_slice(self) -> None:
        if self._slices:
            self._slices[0][1].synchronize()

    def take_slices_s(self) -> tuple[float, ...]:
        """Durations of the slices that have ended since the last call."""
        ended = []
        while self._slices and self._slices[0][1].query():
            began, end = self._slices.popleft()
            ended.append(began.elapsed_time(end) / 1000.0)
        return tuple(ended)

    def take_decode_s(self) -> float | None:
        """Takes the time of the step that the loop has waited for; None when it launched none."""
        if self._decode is None:
            return None
        began, end = self._decode
        self._decode = None
        return float(began.elapsed_time(end)) / 1000.0
