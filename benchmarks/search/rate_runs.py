"""The search for goodput of one session: which rates are tried, and what a run must attain."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engines.engine_session import EngineSession
from load.request_times import TimedRequest
from search.goodput import Attainment, RateSearch

from pdmux_actor.messages import Slo

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
