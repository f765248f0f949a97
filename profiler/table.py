"""Interpolated measurements, of whole launches or operator by operator."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from profiler.batch_features import Feature
from profiler.grid_table import GridTable
from profiler.latency import LatencyModel
from profiler.measured import MeasuredLatency, fit_partitions
from profiler.measurement import MeasuredBatches, Measurement
from profiler.specs import ModelSpec
from profiler.trend import PHASE_FEATURES

_PHASE_AXES: Mapping[str, tuple[Feature, ...]] = MappingProxyType(
    {
        "prefill": ("prefill_tokens", "prefill_context"),
        "decode": ("decode_sequences", "decode_depth"),
        # Fused steps have four dimensions and few measurements: the trend has all, the grid the two that weigh most.
        "mixed": ("prefill_tokens", "decode_sequences"),
    }
)


class TableLatency(MeasuredLatency):
    """`is_outside` says which queries no measurement backs; the answer is then the trend with the nearest correction.

    Built from whole launches by `fit`, or from measured operators (profiler/operator_profile.py).
    """

    @classmethod
    def fit(cls, measurements: Mapping[ModelSpec, Sequence[Measurement]], *, beyond: LatencyModel) -> "TableLatency":
        """Fits the launches that ran alone; partitions: see fit_partitions."""
        fitted = {spec: fit_partitions(rows, _fit_phase) for spec, rows in measurements.items()}
        return cls(fitted, beyond=beyond, rows=measurements)


def _fit_phase(phase: str, rows: Sequence[Measurement]) -> GridTable:
    measured = MeasuredBatches.of(rows)
    return GridTable.fit(PHASE_FEATURES[phase], _PHASE_AXES[phase], measured.batches, measured.seconds)
