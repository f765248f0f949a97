"""Predicts which share of requests will be in time where demand is known only roughly."""

import math
from collections.abc import Collection, Mapping
from statistics import NormalDist

from placement.demand import ModelDemand
from placement.estimation.plan_estimate import FleetEstimate, UnitEstimate

_STRATA = 16
_WINDOW_S = 30.0  # a burst that is over sooner waits in queues


def predicted_attainment(
    found: FleetEstimate,
    demands: Mapping[str, ModelDemand],
    *,
    uncertainty: float,
    left_out: Collection[str] | None = None,
) -> float:
    """Returns the expected share of requests in time.

    A unit whose load may grow by the factor h serves the share min(1, h / f) of a load that is f times as large as
    planned for. f is log-normal with mean 1 and the variance

        sigma^2 = uncertainty^2 + sum_m w_m^2 c_m^2 / (x_m 30 s)    w_m: m's share of the unit's requests

    whose second part is that of counts of arrivals with rate x_m and variation c_m. The models of `left_out` do not
    count: no size helps them. Default: those whose targets no unit of this fleet can meet.
    """
    hopeless = {m.model for m in found.models if not m.meets_slo}
    ignored = hopeless if left_out is None else left_out
    asked_per_s = sum(m.rate_per_s for m in found.models if m.model not in ignored)
    if asked_per_s <= 0:
        return 1.0
    in_time_per_s = 0.0
    for unit in found.units:
        carried_per_s = sum(r.rate_per_s for r in unit.replicas if r.model not in hopeless)
        if carried_per_s > 0:
            in_time_per_s += carried_per_s * _share_in_time(unit, demands, uncertainty)
    return min(1.0, in_time_per_s / asked_per_s)


def _share_in_time(unit: UnitEstimate, demands: Mapping[str, ModelDemand], uncertainty: float) -> float:
    """By the means of equally likely parts of the distribution of f."""
    load_per_s = sum(r.rate_per_s for r in unit.replicas)
    variance = uncertainty**2
    for replica in unit.replicas:
        demand, weight = demands[replica.model], replica.rate_per_s / load_per_s
        if demand.rate_per_s > 0:
            variance += weight**2 * max(1.0, demand.arrival_cv) ** 2 / (demand.rate_per_s * _WINDOW_S)
    if variance <= 0:
        return min(1.0, unit.headroom)
    sigma = math.sqrt(math.log1p(variance))
    normal = NormalDist(-(sigma**2) / 2, sigma)
    factors = [math.exp(normal.inv_cdf((i + 0.5) / _STRATA)) for i in range(_STRATA)]
    weighed = sum(factor * min(1.0, unit.headroom / factor) for factor in factors)  # more requests come when f is large
    return weighed / sum(factors)
