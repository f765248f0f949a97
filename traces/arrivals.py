"""Arrival processes."""

import numpy as np

from traces.errors import BadParameter


def gamma_arrivals(rate_per_s: float, count: int, *, cv: float, seed: int) -> tuple[float, ...]:
    """A renewal process with Gamma gaps of coefficient of variation `cv`: 1 is Poisson, more is burstier, 0 is even."""
    if not 0 < rate_per_s < float("inf"):
        raise BadParameter(name="rate_per_s", value=rate_per_s, remedy="give a finite rate above 0")
    if not 0 <= cv < float("inf"):
        raise BadParameter(name="cv", value=cv, remedy="give a finite number of at least 0")
    if count < 0:
        raise BadParameter(name="count", value=count, remedy="give at least 0")
    if cv == 0:
        gaps_s = np.full(count, 1.0 / rate_per_s)
    else:
        shape = 1.0 / cv**2
        gaps_s = np.random.default_rng(seed).gamma(shape, 1.0 / (rate_per_s * shape), size=count)
    return tuple(float(t) for t in np.cumsum(gaps_s))


def poisson_arrivals(rate_per_s: float, count: int, *, seed: int) -> tuple[float, ...]:
    return gamma_arrivals(rate_per_s, count, cv=1.0, seed=seed)
