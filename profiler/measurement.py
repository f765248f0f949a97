"""One measured launch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from profiler.batch_features import BatchFeatures, stacked
from profiler.latency import Floats
from profiler.probe import LaunchShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """`seconds` is the lower quartile of `repeats` timings, `median_s` their median. With `beside`, a prefill that ran
    all the while. `is_held_out` rows are kept from fitting, to judge by.
    """

    launch: LaunchShape
    seconds: float
    median_s: float
    repeats: int
    is_held_out: bool = False
    beside: LaunchShape | None = None


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


def mean_relative_error(
    measurements: Sequence[Measurement], predict_s: Callable[[LaunchShape], float]
) -> tuple[float, float]:
    """Mean and 90 % quantile of |predicted / measured - 1|."""
    errors = [abs(predict_s(m.launch) / m.seconds - 1) for m in measurements]
    return float(np.mean(errors)), float(np.quantile(errors, 0.9))
