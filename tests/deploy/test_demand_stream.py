"""Requests that a simulation makes of a fleet file's demand."""

from itertools import pairwise

import numpy as np
import pytest

from deploy.simulation.streams import demand_stream
from placement.demand import ModelDemand

RATE_PER_S = 20.0


def arrivals_s(arrival_cv: float, *, duration_s: float = 2000.0, seed: int = 1) -> list[float]:
    demand = ModelDemand(model="m", rate_per_s=RATE_PER_S, prompt_tokens=100, output_tokens=10, arrival_cv=arrival_cv)
    return [r.arrival_s for r in demand_stream([demand], duration_s=duration_s, seed=seed).records()]


@pytest.mark.parametrize("arrival_cv", [0.0, 0.5, 1.0, 3.0])
def test_demand_stream__any_burstiness__has_the_rate_and_the_variation_that_are_asked_for(arrival_cv: float) -> None:
    times_s = arrivals_s(arrival_cv)
    gaps_s = np.array([after - before for before, after in pairwise(times_s)])

    assert len(times_s) == pytest.approx(2000 * RATE_PER_S, rel=0.06)
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(arrival_cv, rel=0.05, abs=1e-6)


def test_demand_stream__bursty__has_its_rate_from_the_start() -> None:
    """Begun with an arrival each model would bring 12 requests more than 20 in a second."""
    models = [
        ModelDemand(model=f"m{i}", rate_per_s=RATE_PER_S, prompt_tokens=100, output_tokens=10, arrival_cv=5.0)
        for i in range(1000)
    ]

    stream = demand_stream(models, duration_s=1.0, seed=1)

    assert stream.count == pytest.approx(1000 * RATE_PER_S, rel=0.1)
