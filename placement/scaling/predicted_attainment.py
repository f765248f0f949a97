"""Predicts which share of requests will be in time where demand is known only roughly."""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from placement.demand import ModelDemand
from placement.estimation.plan_estimate import FleetEstimate, PrefillQueue, UnitEstimate

_STRATA = 16
_WINDOW_S = 30.0  # what decodes too slowly for so long is late


def predicted_attainment(
    found: FleetEstimate,
    demands: Mapping[str, ModelDemand],
    *,
    uncertainty: float,
    left_out: Collection[str] | None = None,
) -> float:
    """Returns the expected share of requests in time, over loads f times as large as planned for.

    First tokens: f is log-normal with mean 1 and the standard deviation `uncertainty`; of each model is lost what waits
    too long (`lost_to_waits`) before all the units that have it. Gaps: a unit whose lanes bear h times its load serves
    the share min(1, h / f) of it, where f varies by chance, too:

        sigma^2 = uncertainty^2 + sum_m w_m^2 c_m^2 / (x_m 30 s)    w_m: m's share of the unit's requests

    whose second part is that of counts of arrivals with rate x_m and variation c_m. The models of `left_out` do not
    count: no size helps them. Default: those whose targets no unit of this fleet can meet.
    """
    hopeless = {m.model for m in found.models if not m.meets_slo}
    ignored = hopeless if left_out is None else left_out
    asked_per_s = sum(m.rate_per_s for m in found.models if m.model not in ignored)
    if asked_per_s <= 0:
        return 1.0
    started = {model: waits.share_in_time(uncertainty) for model, waits in _waits(found.units).items()}
    in_time_per_s = 0.0
    for unit in found.units:
        replicas = [r for r in unit.replicas if r.model not in hopeless]
        if sum(r.rate_per_s for r in replicas) > 0:
            flows = _share_that_flows(unit, demands, uncertainty)
            in_time_per_s += sum(r.rate_per_s * min(flows, started.get(r.model, 1.0)) for r in replicas)
    return min(1.0, in_time_per_s / asked_per_s)


@dataclass(frozen=True, slots=True)
class _Waits:
    """What a model's requests wait in: their queue on each unit, and how many of them come there in a second."""

    model: str
    queues: Sequence[tuple[float, PrefillQueue]]

    def share_in_time(self, uncertainty: float) -> float:
        rate_per_s = sum(rate for rate, _ in self.queues)
        if rate_per_s <= 0:
            return 1.0
        busy = sum(rate * queue.busy for rate, queue in self.queues) / rate_per_s
        slack_s = sum(rate * queue.slack_s[self.model] for rate, queue in self.queues) / rate_per_s
        pulls_per_s = sum(2.0 / queue.work_s for _, queue in self.queues)
        return started_in_time(busy, pulls_per_s, slack_s, len(self.queues), uncertainty=uncertainty)


def started_in_time(busy: float, pulls_per_s: float, slack_s: float, units: int, *, uncertainty: float) -> float:
    """Returns the share that does not wait too long (`lost_to_waits`), over loads f times as large as `busy`."""
    factors = _factors(uncertainty**2)
    return 1.0 - _mean_over([lost_to_waits(f * busy, pulls_per_s, slack_s, units) for f in factors], factors)


def _waits(units: Sequence[UnitEstimate]) -> Mapping[str, _Waits]:
    queues: defaultdict[str, list[tuple[float, PrefillQueue]]] = defaultdict(list)
    for unit in units:
        for replica in unit.replicas:
            if unit.queue is not None:
                queues[replica.model].append((replica.rate_per_s, unit.queue))
    return {model: _Waits(model, of_model) for model, of_model in queues.items()}


def _share_that_flows(unit: UnitEstimate, demands: Mapping[str, ModelDemand], uncertainty: float) -> float:
    load_per_s = sum(r.rate_per_s for r in unit.replicas)
    variance = uncertainty**2
    for replica in unit.replicas:
        demand, weight = demands[replica.model], replica.rate_per_s / load_per_s
        if demand.rate_per_s > 0:
            variance += weight**2 * max(1.0, demand.arrival_cv) ** 2 / (demand.rate_per_s * _WINDOW_S)
    factors = _factors(variance)
    return _mean_over([min(1.0, unit.lane_headroom / f) for f in factors], factors)


def _factors(variance: float) -> Sequence[float]:
    """The means of equally likely parts of the distribution of f."""
    if variance <= 0:
        return (1.0,)
    sigma = math.sqrt(math.log1p(variance))
    normal = NormalDist(-(sigma**2) / 2, sigma)
    return [math.exp(normal.inv_cdf((i + 0.5) / _STRATA)) for i in range(_STRATA)]


def _mean_over(shares: Sequence[float], factors: Sequence[float]) -> float:
    """More requests come when f is large."""
    return sum(f * share for f, share in zip(factors, shares, strict=True)) / sum(factors)


_SMALL = 1e-9
_MOST_EXPONENT = 600.0


def lost_to_waits(busy: float, pulls_per_s: float, slack_s: float, units: float) -> float:
    """Returns the share of requests that cannot start within `slack_s`, which are given up or served late and behind.

    `busy` is the mean load of the units, `pulls_per_s` the sum of 2 / work_s over them. Routing by the predicted first
    token makes one queue of theirs: a wait is longer than t with the chance

        X(t) = C exp(-pulls (1 - busy) t)    C = busy^(sqrt(2 (units + 1)) - 1)

    (Sakasegawa's chance to wait, and the exponential tail of GI/G/m). Whoever cannot be in time leaves room to the
    rest, so that fewer are lost than would wait: (1 - busy) X / (1 - busy X) (Boots and Tijms 1999), which goes over
    into 1 - 1/busy of what is too much.
    """
    if busy <= _SMALL:
        return 0.0
    if slack_s <= 0:
        return 1.0
    idle = 1.0 - busy
    if abs(idle) < 1e-6:
        idle = 1e-6  # the formula is 0/0 there, and as smooth as elsewhere
        busy = 1.0 - idle
    exponent = -pulls_per_s * idle * slack_s
    if exponent > _MOST_EXPONENT:
        return 1.0 - 1.0 / busy
    waits = math.pow(busy, math.sqrt(2.0 * (units + 1.0)) - 1.0) * math.exp(exponent)
    return min(1.0, max(0.0, idle * waits / (1.0 - busy * waits)))
