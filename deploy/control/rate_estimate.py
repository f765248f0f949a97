"""Learns from counts how often something happens, by an exponential average that starts afresh, and how bursty a
model's arrivals are.
"""

import math
from dataclasses import dataclass, field

_LEAST_RATE_PER_S = 0.02  # what silence is compared with: a few requests after hours of nothing are news


@dataclass(frozen=True, slots=True, kw_only=True)
class RateTuning:
    """`memory_s` is the time constant of the average. A change is a rate that grew or fell by `factor`; `evidence` is
    the log-likelihood ratio that it takes to believe in one.
    """

    memory_s: float = 120.0
    factor: float = 2.0
    evidence: float = 8.0


class RateEstimate:
    """Page's CUSUM test for a Poisson rate (Page 1954), both ways, beside the average.

    For a count c where the average expects m, evidence for a rate of f*m grows by c*ln(f) - m*(f-1), for one of m/f by
    m*(1-1/f) - c*ln(f), and neither falls below 0. Where evidence is enough, the change is taken to have begun where,
    since it last was 0, that is most likely: at the start k with the largest likelihood ratio of the mean r_k of the
    c_k since then against the rate r before, c_k*ln(r_k/r) - (r_k - r)*s_k over the time s_k (Lorden 1971). The rate is
    taken to be r_k: what came by chance before the change would dilute it.
    """

    def __init__(self, prior_per_s: float, tuning: RateTuning) -> None:
        self.per_s = prior_per_s
        self._tuning = tuning
        self.known_for_s = tuning.memory_s
        self._up = _Excursion()
        self._down = _Excursion()

    def add(self, count: int, span_s: float) -> bool:
        """True if the rate has just jumped."""
        expected = max(self.per_s, _LEAST_RATE_PER_S) * span_s
        factor, log_factor = self._tuning.factor, math.log(self._tuning.factor)
        self._up.add(count * log_factor - expected * (factor - 1), count, span_s)
        self._down.add(expected * (1 - 1 / factor) - count * log_factor, count, span_s)
        for excursion in (self._up, self._down):
            if excursion.evidence >= self._tuning.evidence:
                changed = excursion.since_change(max(self.per_s, _LEAST_RATE_PER_S))
                self.per_s, self.known_for_s = changed.count / changed.span_s, changed.span_s
                self._up, self._down = _Excursion(), _Excursion()
                return True
        self.known_for_s = min(self._tuning.memory_s, self.known_for_s + span_s)
        self.per_s += min(1.0, span_s / self.known_for_s) * (count / span_s - self.per_s)
        return False


@dataclass(frozen=True, slots=True)
class _Bin:
    count: int
    span_s: float


@dataclass(slots=True)
class _Excursion:
    evidence: float = 0.0
    bins: list[_Bin] = field(default_factory=list)  # few: evidence grows, or falls to 0

    def add(self, evidence: float, count: int, span_s: float) -> None:
        self.evidence += evidence
        if self.evidence <= 0:
            self.evidence = 0.0
            self.bins.clear()
        else:
            self.bins.append(_Bin(count, span_s))

    def since_change(self, before_per_s: float) -> _Bin:
        """All bins from the most likely change on, as one."""
        since = [
            _Bin(sum(b.count for b in self.bins[start:]), sum(b.span_s for b in self.bins[start:]))
            for start in range(len(self.bins))
        ]
        return max(since, key=lambda b: _log_likelihood_ratio(b, before_per_s))


def _log_likelihood_ratio(counted: _Bin, before_per_s: float) -> float:
    expected = before_per_s * counted.span_s
    surprise = counted.count * math.log(counted.count / expected) if counted.count else 0.0
    return surprise - counted.count + expected


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
