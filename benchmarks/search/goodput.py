"""The highest rate at which targets are attained, by bisection."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engines.engine_session import RunOutcome
from load.request_times import RequestTimes


@dataclass(slots=True)
class RateSearch:
    """Multiplies or divides a first guess by `growth` until a rate has passed and one has failed, then bisects between.

    >>> search = RateSearch(first_per_s=1.0, resolution=0.1, max_runs=20)
    >>> while not search.done:
    ...     rate = search.next_rate_per_s()
    ...     search.note(rate, passed=rate <= 3.0)
    >>> 2.7 < search.goodput_per_s <= 3.0 < search.failing_per_s
    True
    """

    first_per_s: float
    resolution: float
    max_runs: int
    growth: float = 1.7
    passing_per_s: float | None = None
    failing_per_s: float | None = None
    runs: int = 0

    @property
    def done(self) -> bool:
        if self.runs >= self.max_runs:
            return True
        if self.passing_per_s is None or self.failing_per_s is None:
            return False
        return self.failing_per_s / self.passing_per_s <= 1 + self.resolution

    @property
    def bracketed(self) -> bool:
        return self.passing_per_s is not None and self.failing_per_s is not None

    @property
    def goodput_per_s(self) -> float:
        """0 when no rate has passed."""
        return self.passing_per_s or 0.0

    def next_rate_per_s(self) -> float:
        if self.passing_per_s is None and self.failing_per_s is None:
            return self.first_per_s
        if self.failing_per_s is None:
            assert self.passing_per_s is not None
            return self.passing_per_s * self.growth
        if self.passing_per_s is None:
            return self.failing_per_s / self.growth
        return math.sqrt(self.passing_per_s * self.failing_per_s)

    def note(self, rate_per_s: float, *, passed: bool) -> None:
        self.runs += 1
        if passed:
            self.passing_per_s = max(rate_per_s, self.passing_per_s or 0.0)
        else:
            self.failing_per_s = min(rate_per_s, self.failing_per_s or math.inf)


class Judge(Protocol):
    """Whether a run has attained what was asked of it."""

    def met_by(self, outcome: RunOutcome) -> bool: ...

    def out_of_reach(self, times: Sequence[RequestTimes]) -> bool:
        """More has been missed already than a run may miss in all."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestAttainment:
    """Share of requests in time, first token and every gap. One late request is always borne, as one late gap below."""

    share: float = 0.99

    def met_by(self, outcome: RunOutcome) -> bool:
        late = sum(not r.is_in_time for r in outcome.requests)
        return late <= self._borne(len(outcome.requests)) and not outcome.gave_up

    def out_of_reach(self, times: Sequence[RequestTimes]) -> bool:
        late = sum(t.ttft_s > t.slo.ttft_s or t.gaps_within < len(t.gaps_s) for t in times if t.token_times_s)
        return late > self._borne(len(times))

    def _borne(self, requests: int) -> float:
        return max(1.0, (1 - self.share) * requests)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attainment:
    """Shares of gaps and of first tokens that must be within target. One late gap is always borne: in a run of LooGLE,
    which has two dozen gaps, 99 % would be all of them, and the machine's own stalls would decide.
    """

    gap_share: float = 0.99
    ttft_share: float = 0.95  # of the few dozen requests that a short run has; 99 % of them would be all

    def met_by(self, outcome: RunOutcome) -> bool:
        wanted = outcome.gaps_wanted
        gaps_missed = round(wanted * (1 - outcome.gap_attainment))
        within = gaps_missed <= self._gaps_borne(wanted) and outcome.ttft_attainment >= self.ttft_share
        return within and not outcome.gave_up

    def out_of_reach(self, times: Sequence[RequestTimes]) -> bool:
        """More has been missed already than a run may miss in all."""
        gaps_wanted = sum(t.num_tokens_wanted - 1 for t in times)
        gaps_missed = sum(len(t.token_times_s) - 1 - t.gaps_within for t in times if t.token_times_s)
        ttfts_missed = sum(t.ttft_s > t.slo.ttft_s for t in times if t.token_times_s)
        return gaps_missed > self._gaps_borne(gaps_wanted) or ttfts_missed > (1 - self.ttft_share) * len(times)

    def _gaps_borne(self, wanted: int) -> float:
        return max(1.0, (1 - self.gap_share) * wanted)
