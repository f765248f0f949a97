"""Percentiles of a histogram are those of the durations that went in, however few they are."""

import numpy as np
import pytest

from deploy.simulation.statistics import Durations

PERCENTS = [0, 1, 50, 90, 99, 99.9, 100]


def durations(times_s: list[float]) -> Durations:
    kept = Durations()
    for time_s in times_s:
        kept.add(time_s)
    return kept


@pytest.mark.parametrize(
    "times_s",
    [
        [0.005, 0.442, 0.005],
        [0.3],
        [0.01, 4.0],
        [0.022] + [0.005] * 9,
        np.random.default_rng(0).lognormal(-3, 1.5, 40).tolist(),
        np.random.default_rng(1).lognormal(-3, 1.5, 5000).tolist(),
        [2e-7, 3e-6, 1.0],
    ],
    ids=["three", "one", "two", "one slow of ten", "forty", "five thousand", "shorter than a bin"],
)
def test_percentile__any_number_of_durations__is_numpys_to_a_bin(times_s: list[float]) -> None:
    kept = durations(times_s)
    found = [kept.percentile_s(percent) for percent in PERCENTS]
    assert found == pytest.approx(np.percentile(times_s, PERCENTS), rel=0.004, abs=1e-5)


def test_percentile__added_one_by_one_at_once_or_merged__is_the_same() -> None:
    times_s = np.random.default_rng(2).lognormal(-3, 1.5, 30)
    at_once, merged = Durations(), durations(times_s[:7].tolist())
    at_once.add_all(times_s)
    merged.merge(durations(times_s[7:].tolist()))
    merged.merge(Durations())
    one_by_one = [durations(times_s.tolist()).percentile_s(percent) for percent in PERCENTS]
    assert one_by_one == [at_once.percentile_s(percent) for percent in PERCENTS]
    assert one_by_one == [merged.percentile_s(percent) for percent in PERCENTS]
