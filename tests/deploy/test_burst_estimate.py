"""The control loop learns how bursty requests come, without taking chance or a change of the rate for bursts."""

import numpy as np
import pytest

from deploy.control.popularity import Popularity
from deploy.control.rate_estimate import BurstEstimate, RateEstimate, RateTuning
from placement.demand import ModelDemand
from router.admission.demand_report import DemandReport, ModelAsked

BIN_S = 5.0


def arrivals_s(rate_per_s: float, cv: float, span_s: float, seed: int) -> np.ndarray:
    """Times of a renewal process with gamma gaps."""
    shape = cv**-2
    count = int(1.5 * rate_per_s * span_s) + 100
    times_s = np.cumsum(np.random.default_rng(seed).gamma(shape, 1 / (rate_per_s * shape), count))
    return times_s[times_s < span_s]


def counts(times_s: np.ndarray, span_s: float) -> list[int]:
    return [int(c) for c in np.histogram(times_s, np.arange(0.0, span_s + BIN_S, BIN_S))[0]]


def learned(binned: list[int], rate_per_s: float, prior_cv: float = 1.0) -> BurstEstimate:
    estimate = BurstEstimate(prior_cv)
    for count in binned:
        estimate.add(count, BIN_S, rate_per_s)
    return estimate


@pytest.mark.parametrize("rate_per_s", [0.1, 2.0, 50.0])
@pytest.mark.parametrize("seed", range(5))
def test_bursts__poisson_for_an_hour__stay_what_they_were(rate_per_s: float, seed: int) -> None:
    estimate = BurstEstimate(1.0)
    for count in counts(arrivals_s(rate_per_s, 1.0, 3600.0, seed), 3600.0):
        estimate.add(count, BIN_S, rate_per_s)
        assert estimate.cv == 1.0


@pytest.mark.parametrize(("cv", "low", "high"), [(2.0, 1.5, 2.5), (4.0, 2.4, 5.0)])
@pytest.mark.parametrize("seed", range(5))
def test_bursts__of_gamma_gaps__are_found_within_ten_minutes_and_forgotten(
    cv: float, low: float, high: float, seed: int
) -> None:
    estimate = learned(counts(arrivals_s(5.0, cv, 600.0, seed), 600.0), 5.0)
    assert low < estimate.cv < high

    for count in counts(arrivals_s(5.0, 1.0, 1800.0, 100 + seed), 1800.0):
        estimate.add(count, BIN_S, 5.0)
    assert estimate.cv == pytest.approx(1.0, abs=0.4)


@pytest.mark.parametrize("factor", [13.0, 1 / 13])
def test_bursts__one_leap_of_the_rate__is_none(factor: float) -> None:
    rate, estimate = RateEstimate(2.0, RateTuning()), BurstEstimate(1.0)
    before, after = arrivals_s(2.0, 1.0, 600.0, 1), arrivals_s(2.0 * factor, 1.0, 600.0, 2)
    for count in [*counts(before, 600.0), *counts(after, 600.0)]:
        rate.add(count, BIN_S)
        estimate.add(count, BIN_S, rate.per_s)
        assert estimate.cv == 1.0


def test_bursts__gateway_reports_half_a_second_late__are_no_burstier_at_any_rate() -> None:
    draw = np.random.default_rng(3)
    cuts_s = np.arange(0.0, 3600.0, BIN_S) - draw.uniform(0.0, 0.5, int(3600 / BIN_S))
    counted = np.diff(np.searchsorted(arrivals_s(200.0, 1.0, 3600.0, 4), cuts_s))

    assert learned([int(c) for c in counted], 200.0).cv == 1.0


def test_bursts__hardly_any_requests__leave_what_the_fleet_file_says() -> None:
    assert learned([0, 1, 0, 0] * 30, 0.05, prior_cv=3.0).cv == 3.0


def told(popularity: Popularity, binned: list[int]) -> float:
    total = 0
    for number, count in enumerate(binned):
        total += count
        asked = ModelAsked(
            model="a", requests_total=total, prompt_tokens_total=total, output_tokens_total=total, waiting=0
        )
        popularity.hear(DemandReport(gateway_id="g", models=(asked,)), BIN_S * number)
        popularity.advance(BIN_S * number)
    return popularity.demand("a").arrival_cv


def test_popularity__bursts__are_part_of_demand_and_of_what_a_successor_knows() -> None:
    prior = ModelDemand(model="a", rate_per_s=5.0, prompt_tokens=1.0, output_tokens=1.0)
    first, second = Popularity(), Popularity()
    first.expect([prior])

    learned_cv = told(first, counts(arrivals_s(5.0, 4.0, 900.0, 5), 900.0))
    second.restore(first.kept())
    second.expect([prior])

    assert learned_cv > 2.0
    assert second.demand("a").arrival_cv == learned_cv
