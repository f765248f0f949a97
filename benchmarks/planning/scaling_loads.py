"""Loads of the scaling benchmark: when requests come. All have 4000 and 4 tokens, for one of two models."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from deploy.simulation.streams import RequestStream
from traces.readers.registry import read_trace
from traces.record import TraceRecord

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"
SERVEGEN = SHARED / "params" / "servegen_windows.parquet"
WEEK = SHARED / "params" / "burstgpt_rate_series.parquet"
SHARE_OF_A = 0.7
HIGHEST_PER_S = 4.2  # of the traces once they are squeezed: what the largest fleet bears with room
DAY_S, SERVEGEN_S, WEEK_S = 1800.0, 1500.0, 3360.0
_WINDOW_S, _WINDOWS_OF_DAY = 600, 144  # ServeGen's
_DAY = 8  # of the ten that ServeGen's windows cover, from 0 on: chosen before any was run

Intensity = Callable[[float], float]


def day_per_s(at_s: float) -> float:
    return 2.25 - 1.75 * math.cos(2 * math.pi * at_s / DAY_S)


def crowd_per_s(at_s: float) -> float:
    return 3.75 if 300 <= at_s < 540 else 0.75


def arrivals(intensity: Intensity, span_s: float, most_per_s: float, seed: int) -> list[float]:
    """A Poisson process by thinning."""
    draw = np.random.default_rng(seed)
    times_s = np.cumsum(draw.exponential(1 / most_per_s, int(span_s * most_per_s * 1.2)))
    kept = draw.random(len(times_s)) * most_per_s < np.array([intensity(float(t)) for t in times_s])
    return [float(t) for t in times_s[kept] if t < span_s]


def week(seed: int) -> list[float]:
    """A Poisson process that follows the five days that there are of BurstGPT's first week, by the hour, and two quiet
    ones; eight minutes for a day.
    """
    table = pd.read_parquet(WEEK)
    rows = table[table["series"] == "week1_minute"]
    hours = np.zeros(7 * 24)
    np.add.at(hours, np.minimum(rows["t"].to_numpy() // 60, 7 * 24 - 1), rows["value"].to_numpy())
    rates_per_s = 0.3 + (HIGHEST_PER_S - 0.3) * np.minimum(1.0, hours / np.quantile(hours, 0.98))
    centres_s = (np.arange(7 * 24) + 0.5) * WEEK_S / (7 * 24)
    return arrivals(lambda t: float(np.interp(t, centres_s, rates_per_s)), WEEK_S, HIGHEST_PER_S, seed)


def servegen(day: int, seed: int, models: str = "m-") -> list[float]:
    """A Poisson process that follows, by ten minutes of one day, what all clients of ServeGen's chat models ask for: of
    hundreds, each thinned to a thousandth, nothing else is left. `models`: how their names begin.
    """
    table = pd.read_parquet(SERVEGEN, columns=["model", "window_start_s", "rate_rps"])
    table = table[table["model"].astype(str).str.startswith(models)]
    windows = (table["window_start_s"] // _WINDOW_S).astype(int)
    rates_per_s = np.bincount(windows, weights=table["rate_rps"], minlength=(day + 1) * _WINDOWS_OF_DAY)
    of_day = rates_per_s[day * _WINDOWS_OF_DAY : (day + 1) * _WINDOWS_OF_DAY]
    highest = rates_per_s[_DAY * _WINDOWS_OF_DAY : (_DAY + 1) * _WINDOWS_OF_DAY].max()
    centres_s = (np.arange(_WINDOWS_OF_DAY) + 0.5) * SERVEGEN_S / _WINDOWS_OF_DAY
    found = of_day * HIGHEST_PER_S / highest
    return arrivals(lambda t: float(np.interp(t, centres_s, found)), SERVEGEN_S, float(found.max()), seed)


def squeezed(file: Path, span_s: float) -> list[float]:
    """A trace's own requests in so much time, thinned until their busiest half minute has `HIGHEST_PER_S`."""
    times_s = np.sort(np.array([r.arrival_s for r in read_trace(file).records]))
    squeezed_s = (times_s - times_s[0]) * span_s / (times_s[-1] - times_s[0])
    highest_per_s = np.bincount((squeezed_s // 30).astype(int)).max() / 30
    every = max(1, math.ceil(highest_per_s / HIGHEST_PER_S))
    return [float(t) for t in squeezed_s[::every]]


def stream_of(name: str, times_s: Sequence[float]) -> RequestStream:
    draw = np.random.default_rng(7)
    models = np.where(draw.random(len(times_s)) < SHARE_OF_A, "a", "b")
    records = [
        TraceRecord(arrival_s=t, input_tokens=4000, output_tokens=4, model=str(m))
        for t, m in zip(times_s, models, strict=True)
    ]
    return RequestStream(
        name=name, records=lambda: iter(records), block_tokens=None, count=len(records), span_s=times_s[-1]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """`arrivals` are another draw for another seed. `needs`: a file. `season_s`: after so long it repeats, and `before`
    makes the arrivals of the season before it; without that, what a season is like is learned as it goes.
    """

    arrivals: Callable[[int], list[float]]
    seed: int
    needs: Path | None = None
    season_s: float | None = None
    before: Callable[[], list[float]] | None = None

    def forecast(self, name: str, folder: Path) -> str:
        """The `forecast` of a fleet file, with its trace in `folder`."""
        assert self.season_s is not None, "it repeats"
        if self.before is None:
            return f"{{season_s: {self.season_s:g}}}"
        records = stream_of(name, self.before()).records()
        rows = [(r.arrival_s, r.input_tokens, r.output_tokens, r.model) for r in records]
        columns = ["arrival_s", "input_tokens", "output_tokens", "model"]
        pd.DataFrame(rows, columns=columns).to_parquet(folder / "before.parquet")
        return f"{{season_s: {self.season_s:g}, trace: {folder / 'before.parquet'}}}"


LOADS: Mapping[str, Load] = {
    "crowd": Load(arrivals=lambda seed: arrivals(crowd_per_s, 900, 3.75, seed), seed=2),
    "day": Load(
        arrivals=lambda seed: arrivals(day_per_s, DAY_S, 4.0, seed),
        seed=1,
        season_s=DAY_S,
        before=lambda: arrivals(day_per_s, DAY_S, 4.0, 11),
    ),
    "servegen": Load(
        arrivals=lambda seed: servegen(_DAY, seed),
        seed=3,
        needs=SERVEGEN,
        season_s=SERVEGEN_S,
        before=lambda: servegen(_DAY - 1, 13),
    ),
    "servegen-small": Load(
        arrivals=lambda seed: servegen(_DAY, seed, "m-small"),
        seed=3,
        needs=SERVEGEN,
        season_s=SERVEGEN_S,
        before=lambda: servegen(_DAY - 1, 13, "m-small"),
    ),
    "week": Load(arrivals=week, seed=5, needs=WEEK, season_s=WEEK_S / 7),
}
