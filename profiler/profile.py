"""Holds what was measured of an engine on a machine, and the latency models that follow from it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from profiler.contention import ContentionGuard, GuardCell
from profiler.latency import LatencyModel
from profiler.measured import FittedLatency
from profiler.measurement import Measurement
from profiler.partition_rates import PartitionRate
from profiler.probe import LaunchShape
from profiler.roofline import RooflineLatency
from profiler.specs import DeviceSpec, ModelSpec
from profiler.table import TableLatency

PHASES = ("prefill", "decode", "mixed")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    spec: ModelSpec
    measurements: tuple[Measurement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """`models` by name; `machine` are facts to read the figures by. `device` has the rates that were measured.
    `host_s`: what a step takes beside its launch, where that was measured.
    """

    engine: str
    device: DeviceSpec
    num_gpus: int
    machine: Mapping[str, str]
    models: Mapping[str, ModelProfile]
    partition_rates: tuple[PartitionRate, ...] = ()
    host_s: float | None = None

    def latency_models(self, *, with_held_out: bool = True) -> dict[str, LatencyModel]:
        """Returns the latency models by name. Models that were not measured are answered by the roofline."""
        roofline = RooflineLatency(self.device, num_gpus=self.num_gpus)
        rows = {
            model.spec: [m for m in model.measurements if with_held_out or not m.is_held_out]
            for model in self.models.values()
        }
        return {
            "roofline": roofline,
            "fitted": FittedLatency.fit(rows, beyond=roofline),
            "table": TableLatency.fit(rows, beyond=roofline),
        }

    def best_latency(self) -> tuple[str, LatencyModel]:
        """The model with the least mean error on held-out launches, fitted to all of them, and its name."""
        errors = self.held_out_errors()
        mean = {name: float(np.mean([e.mean for e in errors if e.latency == name] or [np.inf])) for name in self._names}
        best = min(self._names, key=lambda name: (mean[name], self._names.index(name)))
        return best, self.latency_models()[best]

    def held_out_errors(self) -> list["HeldOutError"]:
        """Returns errors by model, latency model and phase, for those that have held-out launches."""
        latencies = self.latency_models(with_held_out=False)
        return [error for name, latency in latencies.items() for error in self._errors_of(name, latency)]

    def guard(self) -> ContentionGuard:
        """The most that a decode step was slowed down by a prefill beside it, per cell of the grid (MuxWise §3.3.2)."""
        grid: dict[GuardCell, float] = {}
        for model in self.models.values():
            alone_s = {m.launch: m.seconds for m in model.measurements if m.beside is None}
            for m in model.measurements:
                if m.beside is not None and m.launch in alone_s:
                    cell = GuardCell.of(m.launch.sms, m.beside.chunks, m.launch.contexts)
                    grid[cell] = max(grid.get(cell, 1.0), m.seconds / alone_s[m.launch])
        return ContentionGuard(grid=grid)

    @property
    def _names(self) -> tuple[str, ...]:
        return ("table", "fitted", "roofline")

    def _errors_of(self, name: str, latency: LatencyModel) -> Iterator["HeldOutError"]:
        for model_name, model in self.models.items():
            for phase in PHASES:
                rows = [m for m in model.measurements if m.is_held_out and m.beside is None and m.launch.phase == phase]
                if rows:
                    yield _error(name, model_name, phase, rows, _predictor(latency, model.spec))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutError:
    """Holds |predicted / measured - 1| over held-out launches."""

    latency: str
    model: str
    phase: str
    launches: int
    mean: float
    p90: float


def _predictor(latency: LatencyModel, spec: ModelSpec) -> Callable[[LaunchShape], float]:
    return lambda launch: latency.mixed_s(spec, launch.chunks, launch.contexts, launch.sms)


def _error(
    latency: str, model: str, phase: str, rows: Sequence[Measurement], predict_s: Callable[[LaunchShape], float]
) -> HeldOutError:
    errors = [abs(predict_s(m.launch) / m.seconds - 1) for m in rows]
    return HeldOutError(
        latency=latency,
        model=model,
        phase=phase,
        launches=len(rows),
        mean=float(np.mean(errors)),
        p90=float(np.quantile(errors, 0.9)),
    )
