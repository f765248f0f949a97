"""The highest rate at which targets are attained, by bisection."""

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from engines.engine_session import EngineSession, RunOutcome
from load.request_times import RequestTimes, TimedRequest

from pdmux_actor.messages import Slo


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


_WARM_UP_SALT = 999


@dataclass(frozen=True, slots=True, kw_only=True)
class RatePlan:
    """A run lasts `window_s`, or as long as `least_requests` take to arrive, and `tail_s` more. A first token is due
    after `ttft_s`, and `ttft_s_per_kilotoken` for its prompt.
    """

    first_per_s: float
    window_s: float
    max_runs: int
    least_requests: int
    tbt_s: float
    ttft_s: float
    ttft_s_per_kilotoken: float
    tail_s: float = 4.0

    def slo_of(self, prompt_tokens: int) -> Slo:
        return Slo(ttft_s=self.ttft_s + self.ttft_s_per_kilotoken * prompt_tokens / 1e3, tbt_s=self.tbt_s)

    def count(self, rate_per_s: float) -> int:
        return max(self.least_requests, int(self.window_s * rate_per_s))


def add_rate_arguments(parser: argparse.ArgumentParser, *, window_s: float, max_runs: int) -> None:
    parser.add_argument("--tbt-s", type=float, default=0.05)
    parser.add_argument("--ttft-s", type=float, default=0.5)
    parser.add_argument("--ttft-s-per-kilotoken", type=float, default=0.25)
    parser.add_argument("--window-s", type=float, default=window_s, help="length of a run (default: %(default).0f)")
    parser.add_argument("--max-runs", type=int, default=max_runs, help="of a search (default: %(default)d)")


def rate_plan(options: argparse.Namespace, *, first_per_s: float, least_requests: int) -> RatePlan:
    return RatePlan(
        first_per_s=first_per_s,
        window_s=options.window_s,
        max_runs=options.max_runs,
        least_requests=least_requests,
        tbt_s=options.tbt_s,
        ttft_s=options.ttft_s,
        ttft_s_per_kilotoken=options.ttft_s_per_kilotoken,
    )


RequestsAt = Callable[[float, int], list[TimedRequest]]


def warm_up(session: EngineSession, plan: RatePlan, requests_at: RequestsAt) -> None:
    """Captures what is not captured yet, and fills what the scheduler learns."""
    session.run(requests_at(plan.first_per_s, _WARM_UP_SALT), tail_s=plan.tail_s)


def search_rate(
    session: EngineSession,
    plan: RatePlan,
    requests_at: RequestsAt,
    models: Sequence[str],
    *,
    beats_per_s: float | None = None,
) -> RateSearch:
    """`requests_at(rate_per_s, salt)`. A rate passes if every model attains its targets: 99 % of the gaps and 95 % of
    the first tokens in time. With `beats_per_s` the search ends at once unless that rate passes.
    """
    attainment = Attainment()
    first_per_s = beats_per_s or plan.first_per_s
    search = RateSearch(first_per_s=first_per_s, resolution=0.1, max_runs=plan.max_runs)
    while not search.done:
        rate_per_s = search.next_rate_per_s()
        requests = requests_at(rate_per_s, search.runs)
        outcome = session.run(requests, give_up=attainment.out_of_reach, tail_s=plan.tail_s)
        passed = all(attainment.met_by(outcome.of_model(model)) for model in models)
        search.note(rate_per_s, passed=passed)
        if beats_per_s is not None and search.runs == 1 and not passed:
            break
    return search
