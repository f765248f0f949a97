"""Reads what the profiles of a fleet's pools say of its units: what plans are estimated by."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.control.fleet_costs import FleetCosts
from placement.estimation.problem_arrays import Estimator
from placement.estimation.step_costs import roofline_of
from profiler.errors import ProfileUnusable
from profiler.latency import LatencyModel
from profiler.profile import Profile
from profiler.specs import DeviceSpec

if TYPE_CHECKING:  # the planner's process reads no fleet file
    from deploy.fleet_file.settings import FleetFile

logger = logging.getLogger(__name__)


def profiles_of(fleet: "FleetFile") -> Mapping[str, str]:
    """Returns the files that pools name, by pool."""
    return {pool.name: pool.profile for pool in fleet.pools if pool.profile is not None}


def profiled_costs(profiles: Mapping[str, str]) -> FleetCosts:
    """`profiles` are files, by pool. Raises ProfileUnusable."""
    read = {pool: _read(file) for pool, file in profiles.items()}
    latencies = {(p.device, p.num_gpus): p.best_latency()[1] for p in read.values()}

    def latency_of(device: DeviceSpec, num_gpus: int) -> LatencyModel:
        """Reads what a profile says of such units; for meshes of other sizes the device's figures."""
        return latencies.get((device, num_gpus)) or roofline_of(device, num_gpus)

    host_s = {p.device: p.host_s for p in read.values() if p.host_s is not None}
    return FleetCosts(
        estimator=Estimator(latency_of=latency_of, measured_host_s=host_s),
        profiled={pool: p.device for pool, p in read.items()},
    )


def readable_costs(profiles: Mapping[str, str]) -> FleetCosts:
    """The same without the profiles that cannot be read on this node: their pools are planned by their devices."""
    readable: dict[str, str] = {}
    for pool, file in profiles.items():
        try:
            _read(file)
        except ProfileUnusable as error:
            logger.warning("the plan does without a profile", extra={"pool": pool, "reason": str(error)})
        else:
            readable[pool] = file
    return profiled_costs(readable)


def _read(file: str) -> Profile:
    from profiler.profile_file import read_profile  # brings pyarrow, which a fleet without profiles does without

    return read_profile(Path(file))
