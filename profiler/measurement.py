"""One measured launch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from profiler.batch_features import BatchFeatures, stacked
from profiler.latency import Floats
from profiler.probe import LaunchShape
from profiler.sweep import PlannedLaunch


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """`seconds` is the lower quartile of `repeats` timings (the median without neighbours on the machine), `high_s` the
    90 % quantile. `beside` is a prefill that ran all the while. Held-out rows are kept from fitting, to judge by.
    """

    launch: LaunchShape
    seconds: float
    high_s: float
    repeats: int
    is_held_out: bool = False
    beside: LaunchShape | None = None


def summarised(planned: PlannedLaunch, timings_s: Sequence[float]) -> Measurement:
    return Measurement(
        launch=planned.launch,
        beside=planned.beside,
        is_held_out=planned.is_held_out,
        seconds=float(np.quantile(timings_s, 0.25)),
        high_s=float(np.quantile(timings_s, 0.9)),
        repeats=len(timings_s),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredBatches:
    """Measurements as columns."""

    batches: BatchFeatures[Floats]
    seconds: Floats

    @classmethod
    def of(cls, measurements: Sequence[Measurement]) -> "MeasuredBatches":
        return cls(
            batches=stacked([m.launch.features for m in measurements]),
            seconds=np.array([m.seconds for m in measurements], dtype=np.float64),
        )


def solo(measurements: Sequence[Measurement], sms: int, phase: str) -> list[Measurement]:
    return [m for m in measurements if m.beside is None and m.launch.sms == sms and m.launch.phase == phase]


def measured_shares(measurements: Sequence[Measurement]) -> tuple[int, ...]:
    return tuple(sorted({m.launch.sms for m in measurements if m.beside is None}))
