"""Says what may come instead of the demand that is planned for: errors of it, bursts, a node that is lost."""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from placement.estimation.plan_estimate import FleetEstimate, estimate
from placement.estimation.problem_arrays import Estimator
from placement.plan import Plan, UnitCapacity
from placement.problem import PlacementModel

_PAIRS, _MOST_BURSTS, _MOST_LOSSES = 3, 4, 4
_ERROR = 2.0  # times the demand of a model, or its inverse
_BURST_S = 10.0
_BURST_DEVIATIONS = 2.0


class Surprise(StrEnum):
    """Names kinds of scenarios."""

    ERRORS = "errors"
    BURST = "burst"
    LOST_NODE = "lost node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """`models` have the demand that comes, `lost` is the node that goes."""

    surprise: Surprise
    models: Sequence[PlacementModel]
    lost: str | None = None

    def outcome(self, units: Sequence[UnitCapacity], plan: Plan, estimator: Estimator) -> FleetEstimate:
        """Estimates what the plan serves then, before anything moves."""
        return estimate([u for u in units if u.node != self.lost], self.models, plan, estimator)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resilience:
    """Means over scenarios: the share of requests that is served within SLO, the same less what models that starve
    count (`worth`), and the share of the model that has it worst.
    `by_surprise` has the first one for each kind.
    """

    served_share: float
    worth: float
    worst_share: float
    by_surprise: Mapping[Surprise, float]

    def merit(self) -> tuple[float, float]:
        """More is better."""
        return round(self.worth, 3), round(self.worst_share, 3)


def scenarios_of(
    units: Sequence[UnitCapacity], models: Sequence[PlacementModel], *, seed: int = 0
) -> Sequence[Scenario]:
    """The same for the same fleet: each model's demand off by a factor of two, either way and then the other way; the
    largest bursts, one at a time; nodes lost, one at a time.
    """
    ordered = sorted(models, key=lambda m: m.model)
    return [*_errors(ordered, seed), *_bursts(ordered), *_losses(units, ordered)]


def resilience(
    units: Sequence[UnitCapacity], plan: Plan, scenarios: Sequence[Scenario], estimator: Estimator
) -> Resilience:
    """Weighs kinds of scenarios alike."""
    found = [(s.surprise, s.outcome(units, plan, estimator)) for s in scenarios]
    kinds = dict.fromkeys(kind for kind, _ in found)
    served = {k: _mean([e.served_share for kind, e in found if kind is k]) for k in kinds}
    worth = {k: _mean([e.worth for kind, e in found if kind is k]) for k in kinds}
    worst = {k: _mean([e.worst_share for kind, e in found if kind is k]) for k in kinds}
    return Resilience(
        served_share=_mean([*served.values()]),
        worth=_mean([*worth.values()]),
        worst_share=_mean([*worst.values()]),
        by_surprise=served,
    )


def _errors(models: Sequence[PlacementModel], seed: int) -> Iterator[Scenario]:
    draw = random.Random(seed)
    for _ in range(_PAIRS):
        factors = [draw.choice((1 / _ERROR, _ERROR)) for _ in models]
        for sign in (1, -1):
            asked = [m.times(factor**sign) for m, factor in zip(models, factors, strict=True)]
            yield Scenario(surprise=Surprise.ERRORS, models=asked)


def _bursts(models: Sequence[PlacementModel]) -> Iterator[Scenario]:
    """Arrivals within ten seconds have a standard deviation of cv x sqrt(rate x 10 s): a renewal process's."""
    factors = {
        m.model: 1 + _BURST_DEVIATIONS * m.demand.arrival_cv / math.sqrt(m.demand.rate_per_s * _BURST_S)
        for m in models
        if m.demand.rate_per_s * _BURST_S >= 1
    }
    largest = sorted(models, key=lambda m: -m.demand.rate_per_s * (factors.get(m.model, 1.0) - 1))
    for bursting in largest[:_MOST_BURSTS]:
        asked = [m.times(factors.get(m.model, 1.0)) if m is bursting else m for m in models]
        yield Scenario(surprise=Surprise.BURST, models=asked)


def _losses(units: Sequence[UnitCapacity], models: Sequence[PlacementModel]) -> Iterator[Scenario]:
    nodes = sorted({u.node for u in units if u.node})
    if len(nodes) > 1:
        for node in nodes[:: -(-len(nodes) // _MOST_LOSSES)]:
            yield Scenario(surprise=Surprise.LOST_NODE, models=models, lost=node)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 1.0
