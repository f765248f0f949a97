"""Tells the engine's thread that the device is lost where a thread that loads a model found it.

Without a launch the engine would never know: it would say that it lives, and every load would fail.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pdmux_actor.executor.cuda.lane_device import LaneDevice


class DeviceLoss:
    def __init__(self, lanes: LaneDevice, wake: Callable[[], None]) -> None:
        """`wake` makes the engine's thread `check`."""
        self._lanes = lanes
        self._wake = wake
        self._error: Exception | None = None

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Encloses work on the device by another thread."""
        try:
            yield
        except Exception:
            try:
                self._lanes.settle()  # raises, whoever waits for it
            except Exception as error:
                self._error = error
                self._wake()
            raise

    def check(self) -> None:
        """Raises what the device answered once it was lost, on which the process ends."""
        if self._error is not None:
            raise self._error
