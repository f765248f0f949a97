"""Plots of simulated runs: distributions, attainment against rate, partitions over time. Needs the extra `plots`."""

from collections.abc import Callable, Iterable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from deploy.errors import OutputNotWritable
from deploy.simulation.fleet_outcome import FleetOutcome, PartitionSample
from deploy.simulation.runs import Sweep
from deploy.simulation.statistics import Durations, ModelStatistics

_WIDTH_IN, _HEIGHT_IN = 9.0, 4.0
_MAX_UNITS = 6  # of the partition plot


class FleetPlots:
    """Collects runs and sweeps by name; `write` makes one file per kind of plot."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs: dict[str, FleetOutcome] = {}
        self._sweeps: dict[str, Sweep] = {}

    def add_run(self, name: str, outcome: FleetOutcome) -> None:
        self._runs[name] = outcome

    def add_sweep(self, name: str, sweep: Sweep) -> None:
        self._sweeps[name] = sweep

    def write(self) -> list[Path]:
        """Raises OutputNotWritable."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            written = []
            if self._runs:
                written.append(self._distributions())
                written += [self._partitions(name, run) for name, run in self._runs.items() if run.partitions]
            if self._sweeps:
                written.append(self._attainment())
        except OSError as error:
            raise OutputNotWritable(path=str(self._folder), reason=error.strerror or str(error)) from error
        return written

    def _distributions(self) -> Path:
        figure, axes = plt.subplots(1, 3, figsize=(_WIDTH_IN * 1.4, _HEIGHT_IN))
        for axis, (title, pick) in zip(axes, _METRICS, strict=True):
            for name, run in self._runs.items():
                times_s, shares = pick(run.total()).cdf()
                axis.step(times_s * 1000, shares, where="post", label=name)
            axis.set(xscale="log", xlabel=f"{title} (ms)", ylabel="share of all", ylim=(0, 1.01))
            axis.grid(alpha=0.3)
        axes[0].legend()
        return self._save(figure, "distributions.png")

    def _partitions(self, name: str, run: FleetOutcome) -> Path:
        units = list(dict.fromkeys(sample.unit_id for sample in run.partitions))[:_MAX_UNITS]
        figure, axes = plt.subplots(
            len(units), 1, figsize=(_WIDTH_IN, 1.2 + 1.3 * len(units)), sharex=True, squeeze=False
        )
        for axis, unit_id in zip(axes[:, 0], units, strict=True):
            samples = [s for s in run.partitions if s.unit_id == unit_id]
            _draw_partition(axis, samples)
            axis.set_ylabel(unit_id, rotation=0, ha="right")
        axes[-1, 0].set_xlabel("fleet time (s)")
        axes[0, 0].set_title(f"{name}: SMs of decode (blue) and prefill (orange), KV in use (line, share)")
        return self._save(figure, f"partition-{name}.png")

    def _attainment(self) -> Path:
        figure, axis = plt.subplots(figsize=(_WIDTH_IN, _HEIGHT_IN))
        for name, sweep in self._sweeps.items():
            rates = [p.rate_per_s for p in sweep.points]
            shares = [100 * p.request_attainment for p in sweep.points]
            (line,) = axis.plot(rates, shares, marker="o", label=name)
            early = [place for place, p in enumerate(sweep.points) if p.outcome.gave_up]
            if early:
                picked = [rates[place] for place in early], [shares[place] for place in early]
                axis.plot(*picked, "o", color=line.get_color(), markerfacecolor="white", label=f"{name}, stopped early")
        axis.axhline(99, color="grey", linewidth=0.8)
        axis.set(xlabel="requests per second", ylabel="requests in time: first token and every gap (%)")
        axis.grid(alpha=0.3)
        axis.legend()
        return self._save(figure, "attainment.png")

    def _save(self, figure: Figure, name: str) -> Path:
        path = self._folder / name
        figure.tight_layout()
        figure.savefig(path, dpi=120)
        plt.close(figure)
        return path


def _draw_partition(axis: Axes, samples: Iterable[PartitionSample]) -> None:
    listed = list(samples)
    times_s = [s.time_s for s in listed]
    decode = [s.decode_sms for s in listed]
    both = [s.decode_sms + s.prefill_sms for s in listed]
    axis.fill_between(times_s, 0, decode, step="post", alpha=0.6)
    axis.fill_between(times_s, decode, both, step="post", alpha=0.6)
    beside = axis.twinx()
    beside.plot(times_s, [s.used_share for s in listed], color="black", linewidth=0.7)
    beside.set_ylim(0, 1.02)


_METRICS: tuple[tuple[str, Callable[[ModelStatistics], Durations]], ...] = (
    ("TTFT", lambda statistics: statistics.ttft),
    ("TBT", lambda statistics: statistics.tbt),
    ("TPOT", lambda statistics: statistics.tpot),
)
