"""Defines by what plans of a running fleet are estimated: one estimator for solver, appraisal and explanations, and
the device of each unit.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pdmux_actor.lease import UnitReport
from placement.estimation.problem_arrays import Estimator
from profiler.devices import DEVICES, laptop_cpu
from profiler.specs import DeviceSpec

_STEP = 1.1  # measured rates are told apart by steps of 10 %: GPUs that are alike shall be alike to the planner


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCosts:
    """`profiled`: the devices that profiles were measured on, by pool."""

    estimator: Estimator = field(default_factory=Estimator)
    profiled: Mapping[str, DeviceSpec] = field(default_factory=dict)

    def device_of(self, report: UnitReport) -> DeviceSpec | None:
        """The profile's where the unit's pool has one, else what the table says of the device, else what the unit
        measured of its GPU at its start. None for a device of unknown speed: cores that a unit may share with others.
        """
        profiled = self.profiled.get(report.pool)
        if profiled is not None:
            return profiled
        name, _, cores = report.device.partition("-")
        if name == "cpu" and cores.isdigit():
            return laptop_cpu(num_cores=int(cores), memory_bytes=report.memory_bytes // report.num_gpus)
        known = DEVICES.get(report.device)
        return known if known is not None or report.measured_device is None else _rounded(report.measured_device)

    def host_s_of(self, report: UnitReport) -> float:
        """Returns what the host is taken to add to each launch of the unit."""
        return self.estimator.host_s_of(self.device_of(report))


def _rounded(device: DeviceSpec) -> DeviceSpec:
    return replace(
        device,
        peak_flops_per_s=_on_grid(device.peak_flops_per_s),
        memory_bandwidth_bytes_per_s=_on_grid(device.memory_bandwidth_bytes_per_s),
        int8_compute_share=_on_grid(device.int8_compute_share),
        int4_compute_share=_on_grid(device.int4_compute_share),
    )


def _on_grid(rate: float) -> float:
    return _STEP ** round(math.log(rate, _STEP)) if rate > 0 else rate
