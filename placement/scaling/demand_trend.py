"""Predicts demand a lead time ahead, so that nodes are asked for before it has come."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from placement.problem import PlacementModel

_WINDOW_S = 300.0
_FEWEST_POINTS = 6
_SURE = 3.0  # standard errors that a slope must be away from 0; rates that are averages err alike for a while
_MOST_GROWTH = 2.0  # a line through minutes says little of what lies beyond twice the demand of now


@dataclass(frozen=True, slots=True)
class _Point:
    time_s: float
    rates_per_s: Mapping[str, float]


class DemandTrend:
    """A line through the rates of the last minutes, by model. Only growth is predicted: a pool that is too large for a
    while costs less than one that is too small.
    """

    def __init__(self) -> None:
        self._points: deque[_Point] = deque()

    def note(self, models: Sequence[PlacementModel], now_s: float) -> None:
        self._points.append(_Point(now_s, {m.model: m.demand.rate_per_s for m in models}))
        while now_s - self._points[0].time_s > _WINDOW_S:
            self._points.popleft()

    def ahead(self, models: Sequence[PlacementModel], lead_s: float) -> tuple[PlacementModel, ...]:
        """Returns the models with the demand that is expected when `lead_s` have passed."""
        return tuple(m.times(self._growth(m.model, lead_s)) for m in models)

    def _growth(self, model: str, lead_s: float) -> float:
        """By ordinary least squares."""
        known = [(p.time_s, p.rates_per_s[model]) for p in self._points if model in p.rates_per_s]
        if len(known) < _FEWEST_POINTS or known[-1][1] <= 0:
            return 1.0
        times_s, rates_per_s = (np.array(column) for column in zip(*known, strict=True))
        offsets_s = times_s - times_s.mean()
        spread = float(offsets_s @ offsets_s)
        slope = float(offsets_s @ rates_per_s) / spread if spread > 0 else 0.0
        residuals = rates_per_s - rates_per_s.mean() - slope * offsets_s
        error = (float(residuals @ residuals) / (len(known) - 2) / spread) ** 0.5 if spread > 0 else 0.0
        if slope <= _SURE * error:
            return 1.0
        return min(_MOST_GROWTH, 1.0 + slope * lead_s / known[-1][1])
