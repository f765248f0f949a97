import numpy as np
import pytest

from deploy.control.popularity import Popularity
from deploy.control.rate_estimate import RateEstimate, RateTuning
from placement.demand import ModelDemand
from router.admission.demand_report import DemandReport, ModelAsked


def prior(model: str, rate_per_s: float) -> ModelDemand:
    return ModelDemand(model=model, rate_per_s=rate_per_s, prompt_tokens=100, output_tokens=10)


def asked(model: str, requests: int, prompts: int = 0, outputs: int = 0, waiting: int = 0, held: int = 0) -> ModelAsked:
    return ModelAsked(
        model=model,
        requests_total=requests,
        prompt_tokens_total=prompts,
        output_tokens_total=outputs,
        waiting=waiting,
        held=held,
    )


def report(gateway: str, *models: ModelAsked) -> DemandReport:
    return DemandReport(gateway_id=gateway, models=models)


def poisson_counts(rate_per_s: float, bins: int, *, seed: int) -> list[int]:
    return [int(c) for c in np.random.default_rng(seed).poisson(rate_per_s * 5.0, bins)]


@pytest.mark.parametrize("seed", range(20))
def test_rate__steady_arrivals_for_an_hour__is_near_the_truth_and_rarely_jumps(seed: int) -> None:
    estimate = RateEstimate(2.0, RateTuning())

    jumps = sum(estimate.add(count, 5.0) for count in poisson_counts(2.0, 720, seed=seed))

    assert estimate.per_s == pytest.approx(2.0, rel=0.35)
    assert jumps <= 2


@pytest.mark.parametrize("factor", [13.0, 3.0, 1 / 3, 0.0])
@pytest.mark.parametrize("seed", range(20))
def test_rate__jump__is_noticed_and_believed_within_a_minute(factor: float, seed: int) -> None:
    estimate = RateEstimate(2.0, RateTuning())
    for count in poisson_counts(2.0, 60, seed=seed):
        estimate.add(count, 5.0)

    jumps = [estimate.add(count, 5.0) for count in poisson_counts(2.0 * factor, 12, seed=100 + seed)]

    assert any(jumps)
    assert estimate.per_s == pytest.approx(2.0 * factor, rel=0.6, abs=0.1)


def test_popularity__two_gateways__their_requests_add_up() -> None:
    popularity = Popularity()
    popularity.expect([prior("a", 0.0)])
    for second in range(601):
        for gateway in ("g1", "g2"):
            popularity.hear(report(gateway, asked("a", second, 300 * second, 40 * second)), float(second))
        popularity.advance(float(second))

    demand = popularity.demand("a")
    assert demand.rate_per_s == pytest.approx(2.0, rel=0.1)
    assert demand.prompt_tokens == pytest.approx(300.0, rel=0.05)
    assert demand.output_tokens == pytest.approx(40.0, rel=0.05)


def test_popularity__gateway_older_than_the_control_loop__only_later_requests_count() -> None:
    popularity = Popularity()
    popularity.expect([prior("a", 1.0)])
    popularity.hear(report("g", asked("a", 1_000_000)), 0.0)
    popularity.advance(0.0)
    popularity.hear(report("g", asked("a", 1_000_005)), 5.0)

    assert popularity.advance(5.0) == frozenset()
    assert popularity.demand("a").rate_per_s == pytest.approx(1.0)


def test_popularity__totals_start_again__are_taken_as_new() -> None:
    popularity = Popularity()
    popularity.expect([prior("a", 1.0)])
    popularity.hear(report("g", asked("a", 50)), 0.0)
    popularity.advance(0.0)
    popularity.hear(report("g", asked("a", 5)), 5.0)
    popularity.advance(5.0)

    assert popularity.demand("a").rate_per_s == pytest.approx(1.0)


def test_popularity__gateways_are_silent__what_was_known_stays() -> None:
    popularity = Popularity()
    popularity.expect([prior("a", 3.0)])
    popularity.hear(report("g", asked("a", 0)), 0.0)
    for second in range(3600):
        assert popularity.advance(float(second)) == frozenset()

    assert popularity.demand("a").rate_per_s == 3.0


@pytest.mark.parametrize("silent", [("g1",), ("g1", "g2")])
@pytest.mark.parametrize("silent_s", [6.0, 8.0, 20.0, 50.0])
def test_popularity__gateways_cannot_tell_for_a_while__are_not_taken_for_a_crowd_afterwards(
    silent: tuple[str, ...], silent_s: float
) -> None:
    """They serve on meanwhile, and tell all of it at once, one after the other."""
    popularity, rates = Popularity(), list[float]()
    popularity.expect([prior("a", 8.0)])
    for step in range(1000):
        now_s = step / 2
        for number, gateway in enumerate(("g1", "g2")):
            back_s = 200.0 + silent_s + number
            if gateway not in silent or not 200.0 < now_s < back_s:
                popularity.hear(report(gateway, asked("a", int(4 * now_s))), now_s)
        popularity.advance(now_s)
        rates.append(popularity.demand("a").rate_per_s)

    assert max(rates) <= 8.0 * 1.2
    assert min(rates) >= (4.0 if silent == ("g1",) else 8.0) * 0.8, (
        "nobody knows whether one that is silent still serves"
    )
    assert rates[-1] == pytest.approx(8.0, rel=0.05)


def test_popularity__no_requests_though_gateways_report__the_prior_fades() -> None:
    popularity = Popularity()
    popularity.expect([prior("a", 3.0)])
    for second in range(600):
        popularity.hear(report("g", asked("a", 0)), float(second))
        popularity.advance(float(second))

    assert popularity.demand("a").rate_per_s < 0.1
    assert popularity.last_asked_s("a") is None


def test_popularity__clock_stood_while_gateways_counted__sees_no_jump() -> None:
    """It hears of a minute's requests at once, from one gateway after the other."""
    stood_s, jumped = 0.0, set[str]()
    popularity = Popularity(lambda: stood_s)
    popularity.expect([prior("a", 8.0)])
    for step in range(400):
        now_s = step / 2
        stood_s = 0.0 if step < 209 else 60.0
        total = int(4 * (now_s + stood_s))
        popularity.hear(report(("g1", "g2")[step % 2], asked("a", total)), now_s)
        jumped |= popularity.advance(now_s)

    assert not jumped
    assert popularity.demand("a").rate_per_s == pytest.approx(8.0, rel=0.1)


def test_popularity__clock_stands_again_and_again__goes_on_learning() -> None:
    stood_s = 0.0
    popularity = Popularity(lambda: stood_s)
    popularity.expect([prior("a", 2.0)])
    for step in range(400):
        stood_s = 3.0 * (step // 8)
        popularity.hear(report("g", asked("a", int(8 * (step / 2 + stood_s)))), step / 2)
        popularity.advance(step / 2)

    assert popularity.demand("a").rate_per_s == pytest.approx(8.0, rel=0.1)


def test_popularity__requests_that_wait__count_as_asked_for_now() -> None:
    popularity = Popularity()
    popularity.expect([prior("a", 0.0)])
    popularity.hear(report("g", asked("a", 7, waiting=1)), 42.0)

    assert popularity.last_asked_s("a") == 42.0

    popularity.hear(report("g", asked("a", 7, held=1)), 43.0)  # has its first token, and lost its unit

    assert popularity.last_asked_s("a") == 43.0


def test_rate__leaps_after_a_stray_request__is_that_after_the_change_not_the_mean_with_the_time_before() -> None:
    """The stray one lets evidence begin early."""
    estimate = RateEstimate(0.1, RateTuning())
    quiet = [estimate.add(1, 5.0)]

    jumps = [estimate.add(10, 5.0), estimate.add(10, 5.0)]

    assert quiet == [False]
    assert jumps == [False, True]
    assert estimate.per_s == pytest.approx(2.0)
