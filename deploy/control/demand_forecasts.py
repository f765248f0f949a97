"""Forecasts demand for the pools whose fleet file says how it repeats."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from placement.problem import PlacementModel
from placement.scaling.seasonal_forecast import ExpectedRate, Season, SeasonalForecast


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptForecast:
    """Tells the next control loop what one learned of a pool's season."""

    pool: str
    season: Season


def at_least(models: Iterable[PlacementModel], expected: Mapping[str, ExpectedRate]) -> tuple[PlacementModel, ...]:
    """Returns the models with the demand that is forecast where that is more."""
    told = ((m, expected.get(m.model)) for m in models)
    return tuple(m if e is None else m.at_rate(max(m.demand.rate_per_s, e.rate_per_s)) for m, e in told)


class DemandForecasts:
    """One forecast for each pool that has one. Demand is of all pools together, so the highest counts. `epoch_s`
    returns what added to the control loop's clock is the time of day.
    """

    def __init__(self, epoch_s: Callable[[], float]) -> None:
        self._epoch_s = epoch_s
        self._told: Mapping[str, Season] = {}
        self._forecasts: dict[str, SeasonalForecast] = {}
        self._kept: dict[str, Season] = {}

    def follow(self, seasons: Mapping[str, Season]) -> None:
        """`seasons`: what is known beforehand, by pool. What was learned is kept while that is the same."""
        before, self._told = self._told, seasons
        gone_on = {p: f for p, f in self._forecasts.items() if p in seasons and before.get(p) == seasons[p]}
        self._forecasts = {p: gone_on.get(p) or self._begin(p, season) for p, season in seasons.items()}

    def _begin(self, pool: str, told: Season) -> SeasonalForecast:
        kept = self._kept.pop(pool, told)
        return SeasonalForecast(kept if kept.season_s == told.season_s else told)

    def note(self, totals: Mapping[str, int], now_s: float) -> None:
        """`totals`: requests of each model since the control loop started."""
        for forecast in self._forecasts.values():
            forecast.note(totals, self._epoch_s() + now_s)

    def expected(self, model: str, now_s: float, ahead_s: float) -> ExpectedRate | None:
        """Returns the highest rate that is forecast until then; None: none is."""
        found = (f.highest(model, self._epoch_s() + now_s, ahead_s) for f in self._forecasts.values())
        return max((e for e in found if e is not None), key=lambda e: e.rate_per_s, default=None)

    def all_expected(self, models: Iterable[str], now_s: float, ahead_s: float) -> Mapping[str, ExpectedRate]:
        """Returns the same of each model of which a rate is forecast."""
        found = {model: self.expected(model, now_s, ahead_s) for model in models} if self._forecasts else {}
        return {model: rate for model, rate in found.items() if rate is not None}

    def kept(self) -> tuple[KeptForecast, ...]:
        return tuple(KeptForecast(pool=p, season=f.known) for p, f in sorted(self._forecasts.items()))

    def restore(self, forecasts: Sequence[KeptForecast]) -> None:
        """Goes on with what a control loop before learned, for pools that are told of later."""
        self._kept = {f.pool: f.season for f in forecasts}
