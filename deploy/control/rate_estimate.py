"""Learns how often something happens, from counts: an exponential average that starts afresh when the rate jumps."""

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
