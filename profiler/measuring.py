"""Runs a sweep against a probe within a time budget."""

from collections.abc import Callable, Iterator, Sequence

from profiler.measurement import Measurement, summarised
from profiler.probe import LaunchShape, Probe
from profiler.roofline import RooflineLatency
from profiler.sweep import PlannedLaunch

_MIN_TIMINGS, _MAX_TIMINGS = 3, 16
_LONGEST_SHARE = 0.05  # of the budget, that one launch may take with all its timings


def measure(
    probe: Probe, planned: Sequence[PlannedLaunch], *, budget_s: float, now: Callable[[], float]
) -> Iterator[Measurement | None]:
    """One item per planned launch, in order, until the time is over. None: it would have taken too long."""
    started_s = now()
    roofline = RooflineLatency(probe.device, num_gpus=probe.num_gpus)
    slower_than_roofline = 1.0
    for index, launch in enumerate(planned):
        left_s = budget_s - (now() - started_s)
        if left_s <= 0:
            return
        modelled_s = _modelled_s(roofline, probe, launch.launch) + _modelled_s(roofline, probe, launch.beside)
        if modelled_s * slower_than_roofline * (_MIN_TIMINGS + 1) > min(left_s, _LONGEST_SHARE * budget_s):
            yield None
            continue
        measurement = summarised(launch, _timings_s(probe, launch, left_s / (len(planned) - index), now))
        if launch.beside is None:
            # The newest ratio: the sweep goes back and forth between small and large.
            slower_than_roofline = measurement.seconds / modelled_s
        yield measurement


def _timings_s(probe: Probe, planned: PlannedLaunch, budget_s: float, now: Callable[[], float]) -> list[float]:
    started_s = now()
    timings_s: list[float] = []
    _time_s(probe, planned)  # threads, caches and kernels of this shape
    while len(timings_s) < _MIN_TIMINGS or (len(timings_s) < _MAX_TIMINGS and now() - started_s < budget_s):
        timings_s.append(_time_s(probe, planned))
    return timings_s


def _time_s(probe: Probe, planned: PlannedLaunch) -> float:
    if planned.beside is None:
        return probe.time_s(planned.launch)
    return probe.time_beside_s(planned.launch, planned.beside)


def _modelled_s(roofline: RooflineLatency, probe: Probe, launch: LaunchShape | None) -> float:
    return 0.0 if launch is None else roofline.mixed_s(probe.spec, launch.chunks, launch.contexts, launch.sms)
