"""Reads what is known of the machine that an engine runs on: from a profile, and from contention in earlier lives."""

import logging
from dataclasses import dataclass
from pathlib import Path

from profiler.contention import ContentionGuard, GuardCell
from profiler.errors import ProfileUnusable
from profiler.guard_file import read_guard_grid, write_guard
from profiler.latency import LatencyModel
from profiler.specs import DeviceSpec

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLatency:
    device: DeviceSpec
    latency: LatencyModel
    guard: ContentionGuard
    host_s: float | None = None

    def check_device(self, device: DeviceSpec) -> None:
        """Predictions for shares that were not measured are scaled: worse, but no reason not to serve."""
        if device.num_sms != self.device.num_sms:
            told = {"measured_on": self.device.num_sms, "has": device.num_sms}
            logger.warning(
                "the profile was measured on another number of SMs or cores than this engine has", extra=told
            )


def read_known_latency(file: str) -> KnownLatency:
    """Raises ProfileUnusable."""
    from profiler.profile_file import read_profile  # brings pyarrow, which an engine without a profile does without

    profile = read_profile(Path(file))
    name, latency = profile.best_latency()
    logger.info(
        "latencies are those of a profile", extra={"models": list(profile.models), "latency": name, "file": file}
    )
    return KnownLatency(device=profile.device, latency=latency, guard=profile.guard(), host_s=profile.host_s)


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
