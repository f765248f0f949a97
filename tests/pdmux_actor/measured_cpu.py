"""What the machine can do, measured once for all engines of a session: it takes most of a second."""

from functools import cache

from pdmux_actor.executor.cpu_device import measure_cpu
from pdmux_actor.executor.lanes import available_cores
from profiler.specs import DeviceSpec


@cache
def measured_cpu() -> DeviceSpec:
    return measure_cpu(len(available_cores()))
