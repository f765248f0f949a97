"""MuxWise's solo-run predictor: Eq. 1 and 2 per partition (§3.3.2)."""

from collections.abc import Mapping, Sequence

from profiler.latency import LatencyModel
from profiler.measured import MeasuredLatency, fit_partitions
from profiler.measurement import MeasuredBatches, Measurement
from profiler.specs import ModelSpec
from profiler.trend import PHASE_FEATURES, Trend


class FittedLatency(MeasuredLatency):
    """Non-negative least squares per model, partition and phase. A few hundred bytes, plausible at any size."""

    @classmethod
    def fit(cls, measurements: Mapping[ModelSpec, Sequence[Measurement]], *, beyond: LatencyModel) -> "FittedLatency":
        """Fits the launches that ran alone; partitions: see fit_partitions."""
        fitted = {spec: fit_partitions(rows, _fit_phase) for spec, rows in measurements.items()}
        return cls(fitted, beyond=beyond, rows=measurements)


def _fit_phase(phase: str, rows: Sequence[Measurement]) -> Trend:
    measured = MeasuredBatches.of(rows)
    return Trend.fit(PHASE_FEATURES[phase], measured.batches, measured.seconds)
