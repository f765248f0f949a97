"""Predicts demand by what came at the same time of earlier seasons: of days, of weeks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

_MONDAY_S = 4 * 86400.0  # Unix time began on a Thursday; weeks begin on Mondays
_BIN_S = 900.0
_FEWEST_BINS, _MOST_BINS = 24, 672  # a week has as many quarters of an hour
_MEMORY = 4  # seasons that a mean is of, about: what has been so for weeks is the rule by now
_LEVEL_MEMORY = 1 / 48  # of a season (of a day half an hour): so far back counts how busy this one is beside the others
_PRIOR_REQUESTS = 20.0  # that came as foreseen before any did: few requests say little of how busy a season is
_LEAST_LEVEL, _MOST_LEVEL = 0.5, 1.5


def bins_of(season_s: float) -> int:
    """Returns into how many equal parts a season is divided: quarters of an hour, where these are neither few nor many.

    >>> [bins_of(s) for s in (600.0, 86400.0, 7 * 86400.0, 28 * 86400.0)]
    [24, 96, 672, 672]
    """
    return min(_MOST_BINS, max(_FEWEST_BINS, round(season_s / _BIN_S)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Season:
    """Tells what comes when in a season, which is divided into equal bins and begins at a Monday's midnight (UTC).
    `rates_per_s`: by model, of each bin. `seen`: how many seasons a bin's rates are the mean of, 0 where nothing is
    known; empty: nothing is known at all.
    """

    season_s: float
    rates_per_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    seen: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedRate:
    """Tells the highest rate that is forecast within so many seconds, and how many seasons say so."""

    rate_per_s: float
    within_s: float
    seasons: int


class SeasonalForecast:
    """The mean of each bin over the seasons before, times how much busier this season is so far than they were: Holt
    and Winters' level and seasons, without a trend, of counts.
    """

    def __init__(self, known: Season) -> None:
        self._season_s = known.season_s
        self._bins = bins_of(known.season_s)
        self._bin_s = known.season_s / self._bins
        is_known = len(known.seen) == self._bins
        self._seen = np.array(known.seen if is_known else [0] * self._bins)
        self._rates = {m: np.array(r) for m, r in known.rates_per_s.items() if is_known and len(r) == self._bins}
        self._came: dict[str, float] = {}
        self._foreseen: dict[str, float] = {}
        self._open: _OpenBin | None = None
        self.known = known
        """What another goes on with: up to the last bin that is over."""
        self._before: Mapping[str, int] = {}
        self._before_s: float | None = None

    def note(self, totals: Mapping[str, int], unix_s: float) -> None:
        """Takes in how many requests of each model there were in all. A total that falls says nothing."""
        before, before_s = self._before, self._before_s
        self._before, self._before_s = totals, unix_s
        if before_s is None or not 0 < unix_s - before_s <= self._bin_s:
            self._open = None
            return
        number = math.floor((unix_s - _MONDAY_S) / self._bin_s)
        if self._open is None or self._open.number != number:
            self._close()
            self._open = _OpenBin(number)
        self._open.span_s += unix_s - before_s
        for model, total in totals.items():
            self._open.add(model, max(0, total - before.get(model, total)))

    def highest(self, model: str, unix_s: float, ahead_s: float) -> ExpectedRate | None:
        """Returns the highest rate from now until then; None where nothing is known of that time."""
        rates = self._rates.get(model)
        if rates is None:
            return None
        ahead_s = min(max(0.0, ahead_s), self._season_s)
        times_s = np.append(np.arange(unix_s, unix_s + ahead_s, self._bin_s / 2), unix_s + ahead_s)
        place = (times_s - _MONDAY_S) % self._season_s / self._bin_s - 0.5  # from the middle of one bin to the next
        floor = np.floor(place).astype(int)
        left, right = floor % self._bins, (floor + 1) % self._bins
        weights = np.array([(1 - place + floor) * (self._seen[left] > 0), (place - floor) * (self._seen[right] > 0)])
        known = weights.sum(axis=0) > 0
        if not known.any():
            return None
        found = (weights * np.array([rates[left], rates[right]])).sum(axis=0)[known] / weights.sum(axis=0)[known]
        return ExpectedRate(
            rate_per_s=float(found.max()) * self._level(model),
            within_s=ahead_s,
            seasons=int(np.maximum(self._seen[left], self._seen[right])[known].max()),
        )

    def _level(self, model: str) -> float:
        came, foreseen = (counted.get(model, 0.0) + _PRIOR_REQUESTS for counted in (self._came, self._foreseen))
        return min(_MOST_LEVEL, max(_LEAST_LEVEL, came / foreseen))

    def _close(self) -> None:
        """Takes in a bin that is over, if most of it was looked at."""
        done = self._open
        if done is None or done.span_s < self._bin_s / 2:
            return
        index = done.number % self._bins
        seen = int(self._seen[index])
        kept = math.exp(-1 / (_LEVEL_MEMORY * self._bins))
        for model in self._rates.keys() | done.requests.keys():
            rates = self._rates.setdefault(model, np.zeros(self._bins))
            requests = done.requests.get(model, 0)
            if seen:
                self._came[model] = kept * self._came.get(model, 0.0) + requests
                self._foreseen[model] = kept * self._foreseen.get(model, 0.0) + float(rates[index]) * done.span_s
            rates[index] += (requests / done.span_s - rates[index]) / min(_MEMORY, seen + 1)
        self._seen[index] = seen + 1
        self.known = Season(
            season_s=self._season_s,
            rates_per_s={m: tuple(float(f"{r:.4g}") for r in rates) for m, rates in sorted(self._rates.items())},
            seen=tuple(self._seen.tolist()),
        )


class _OpenBin:
    """The bin of now; bins are numbered from the first Monday on."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.span_s = 0.0
        self.requests: dict[str, int] = {}

    def add(self, model: str, requests: int) -> None:
        self.requests[model] = self.requests.get(model, 0) + requests


def season_of_arrivals(season_s: float, arrivals_s: Mapping[str, Sequence[float]], *, starts_s: float = 0.0) -> Season:
    """Returns what a trace says of a season: `arrivals_s` by model, the first of them all `starts_s` after a Monday's
    midnight. Of several seasons it is the mean. A bin counts that it covers for the most part.

    The last arrival of all ends what was looked at and is not counted: no time was looked at behind it.
    """
    bins = bins_of(season_s)
    bin_s = season_s / bins
    first_s = min(min(times_s) for times_s in arrivals_s.values()) - starts_s
    last_s = max(max(times_s) for times_s in arrivals_s.values()) - first_s
    numbers = np.arange(math.floor(starts_s / bin_s), math.floor(last_s / bin_s) + 1)
    covered_s = np.minimum((numbers + 1) * bin_s, last_s) - np.maximum(numbers * bin_s, starts_s)
    looked_s = np.bincount(numbers % bins, weights=covered_s, minlength=bins)
    is_seen = looked_s >= bin_s / 2

    def rates(times_s: NDArray[np.float64]) -> tuple[float, ...]:
        since_s = times_s - first_s
        counts = np.bincount((since_s[since_s < last_s] // bin_s).astype(int) % bins, minlength=bins)
        return tuple(np.where(is_seen, counts / np.maximum(looked_s, 1e-9), 0.0).tolist())

    return Season(
        season_s=season_s,
        rates_per_s={model: rates(np.array(times_s)) for model, times_s in arrivals_s.items()},
        seen=tuple(np.where(is_seen, np.maximum(1, np.round(looked_s / bin_s)), 0).astype(int).tolist()),
    )
