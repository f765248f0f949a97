import numpy as np
import pytest

from traces.errors import BadParameter
from traces.stats import describe, describe_models
from traces.synthetic import PROFILES, gamma_arrivals, poisson_arrivals, power_law_popularity, synthesize


@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0, 3.0])
def test_gamma_arrivals__a_cv__gaps_have_the_rate_and_the_cv(cv):
    gaps_s = np.diff((0.0, *gamma_arrivals(4.0, 40_000, cv=cv, seed=1)))

    assert gaps_s.mean() == pytest.approx(0.25, rel=0.06)
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(cv, rel=0.06, abs=1e-9)


def test_poisson_arrivals__counts_per_window__have_the_variance_of_poisson():
    times_s = np.array(poisson_arrivals(5.0, 50_000, seed=2))
    counts = np.bincount((times_s // 10.0).astype(int))[:-1]

    assert counts.var() / counts.mean() == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize("arguments", [{"rate_per_s": 0.0}, {"rate_per_s": float("inf")}, {"cv": -1.0}, {"count": -1}])
def test_gamma_arrivals__unusable_argument__is_refused(arguments):
    with pytest.raises(BadParameter, match=next(iter(arguments))):
        gamma_arrivals(**{"rate_per_s": 1.0, "count": 3, "cv": 1.0, "seed": 0, **arguments})


def test_power_law_popularity__alpha__ratio_of_ranks_follows_it():
    shares = list(power_law_popularity([f"m{i}" for i in range(19)], 2.1).values())

    assert sum(shares) == pytest.approx(1.0)
    assert shares[0] / shares[9] == pytest.approx(10**2.1)
    assert shares == sorted(shares, reverse=True)


def test_power_law_popularity__alpha_zero__is_uniform():
    assert list(power_law_popularity(["a", "b"], 0.0).values()) == [0.5, 0.5]


@pytest.mark.parametrize(("models", "alpha"), [([], 1.0), (["a"], -0.1), (["a"], float("inf"))])
def test_power_law_popularity__unusable_argument__is_refused(models, alpha):
    with pytest.raises(BadParameter):
        power_law_popularity(models, alpha)


# Means of the public files, research figures: (input, output).
PUBLISHED_MEANS = {
    "azure_conv": (1_155, 211),
    "azure_code": (2_048, 28),
    "mooncake_conversation": (12_035, 343),
    "sharegpt": (2_340, 439),
    "lmsys_chat": (62, 162),
}


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_profile__many_samples__published_quantiles_and_means_are_met(name):
    profile = PROFILES[name]
    for distribution, mean in zip((profile.input, profile.output), PUBLISHED_MEANS[name], strict=True):
        drawn = distribution.sample(60_000, np.random.default_rng(3))

        p50, p99 = np.percentile(drawn, [50, 99])
        assert p50 == pytest.approx(distribution.p50_tokens, rel=0.05)
        assert p99 == pytest.approx(distribution.p99_tokens, rel=0.08)
        assert drawn.mean() == pytest.approx(mean, rel=0.30)
        assert distribution.min_tokens <= drawn.min()
        assert drawn.max() <= distribution.max_tokens


def trace_of(**changes):
    arguments = {
        "popularity": power_law_popularity(["a", "b", "c"], 1.0),
        "rate_per_s": 6.0,
        "count": 3000,
        "lengths": PROFILES["azure_conv"],
        "seed": 7,
    }
    return synthesize(**{**arguments, **changes})


def test_synthesize__same_seed__same_trace_and_another_seed_differs():
    assert trace_of() == trace_of()
    assert trace_of() != trace_of(seed=8)


def test_synthesize__popularity_and_rate__shares_and_rate_follow():
    trace = trace_of()

    per_model = describe_models(trace)
    assert len(trace.records) == 3000
    assert [r.arrival_s for r in trace.records] == sorted(r.arrival_s for r in trace.records)
    assert per_model["a"].requests / 3000 == pytest.approx(6 / 11, abs=0.04)
    assert describe(trace).arrivals.mean_rate_per_s == pytest.approx(6.0, rel=0.06)


def test_synthesize__cv__each_models_gaps_are_that_bursty():
    per_model = describe_models(trace_of(cv=3.0, count=20_000))

    assert per_model["a"].arrivals.cv == pytest.approx(3.0, rel=0.12)


def test_synthesize__another_models_lengths_change__a_model_keeps_its_requests():
    lengths = dict.fromkeys("abc", PROFILES["azure_conv"])

    before = [r for r in trace_of(lengths=lengths).records if r.model == "a"]
    after = [r for r in trace_of(lengths={**lengths, "b": PROFILES["azure_code"]}).records if r.model == "a"]

    assert before == after


@pytest.mark.parametrize(
    "changes", [{"count": 0}, {"rate_per_s": -1.0}, {"popularity": {}}, {"popularity": {"a": 0.0}}, {"lengths": {}}]
)
def test_synthesize__unusable_argument__is_refused(changes):
    with pytest.raises(BadParameter):
        trace_of(**changes)
