"""Defines what a profile says of the machine that an engine runs on."""

import logging
from dataclasses import dataclass
from pathlib import Path

from profiler.contention import ContentionGuard
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
