"""Keeps what an engine learns about contention from one life of it to the next."""

import logging
from pathlib import Path

from profiler.contention import ContentionGuard, GuardCell
from profiler.errors import ProfileUnusable
from profiler.guard_file import read_guard_grid, write_guard
from profiler.specs import DeviceSpec

logger = logging.getLogger(__name__)


class ContentionStore:
    """`guard` begins with what a profile says, and knows better where an engine on such a device has learned more."""

    def __init__(self, file: str | None, device: DeviceSpec, profiled: ContentionGuard | None) -> None:
        """`file` None: nothing is kept. Raises ProfileUnusable."""
        self._path = None if file is None else Path(file)
        self._device = device
        grid: dict[GuardCell, float] = {} if profiled is None else dict(profiled.items())
        if self._path is not None:
            learned = read_guard_grid(self._path, device)
            logger.info("contention guard is read", extra={"cells": len(learned), "file": str(self._path)})
            grid.update(learned)
        self.guard = ContentionGuard(grid=grid)

    def keep(self) -> None:
        """Keeps what was learnt at the end of an engine's life. That it cannot be kept is no reason to end badly."""
        if self._path is None or not self.guard.cells_moved:
            return
        try:
            write_guard(self.guard, self._path, self._device)
        except (OSError, ProfileUnusable):
            logger.exception(
                "what the contention guard learned is lost: its file cannot be written", extra={"file": str(self._path)}
            )
