"""Learns how bursty a model's arrivals are, from counts."""

import math
from dataclasses import dataclass

_FEWEST = 8.0  # requests of a window in the mean: fewer hardly tell bursts from chance
_REPORT_S = 0.5  # between two reports of a gateway: what is counted late must be little beside what comes by chance
_MEMORY = 50.0  # windows
_LEAST = 1 / 16  # of the index
_MOST = 16.0  # times the index: a single leap of the rate is news for the rate, and no burst
_BAND = 0.3  # of the logarithm; within it, what plans count on stays: nothing shall move because of noise


@dataclass(frozen=True, slots=True)
class _Window:
    count: int = 0
    span_s: float = 0.0


class BurstEstimate:
    """Averages the index of dispersion of counts, which of a renewal process is in the long run the squared coefficient
    of variation of its gaps (Cox 1962). Of two windows in a row with a and b requests it is (a - b)^2 / (a + b) in the
    mean, whatever the rate, and hardly more for a rate that changes slowly.
    """

    def __init__(self, prior_cv: float) -> None:
        self.cv = prior_cv
        """What plans count on."""
        self._index = prior_cv**2
        self._before: _Window | None = None
        self._now = _Window()

    def add(self, count: int, span_s: float, rate_per_s: float) -> None:
        """`rate_per_s`: what the model is taken to be asked for."""
        self._now = _Window(self._now.count + count, self._now.span_s + span_s)
        if self._now.span_s * rate_per_s < _FEWEST or self._now.span_s < rate_per_s * _REPORT_S**2:
            return
        if self._before is not None and self._before.count + self._now.count:
            most = _MOST * max(1.0, self._index)
            index = min(most, max(_LEAST, _index(self._before, self._now)))
            self._index += (index - self._index) / _MEMORY
            self._settle()
        self._before, self._now = self._now, _Window()

    def _settle(self) -> None:
        found, told = 0.5 * math.log(max(_LEAST, self._index)), math.log(max(_LEAST, self.cv))
        if abs(found - told) > _BAND:
            self.cv = math.exp(_BAND * round(found / _BAND))


def _index(one: _Window, other: _Window) -> float:
    """For windows of any two lengths."""
    mean_per_s = (one.count + other.count) / (one.span_s + other.span_s)
    apart_per_s = one.count / one.span_s - other.count / other.span_s
    return apart_per_s**2 / (mean_per_s * (1 / one.span_s + 1 / other.span_s))
