"""Gives a placed model's adapters their part of its lease, and counts it with the model's: they are wherever it is, and
need no plan.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set

from deploy.fleet_file.model_catalog import Catalog
from pdmux_actor.lease import ModelAssignment, ModelPhase, UnitReport
from placement.demand import ModelDemand
from placement.plan import ModelPlacement, UnitPlan

_HELD = frozenset({ModelPhase.READY, ModelPhase.STALLED, ModelPhase.LOADING})


def assignments(
    placements: Iterable[ModelPlacement], catalog: Catalog, asleep: Set[str], demand: Callable[[str], ModelDemand]
) -> Iterator[ModelAssignment]:
    """Makes those of each placed model, and of its adapters that are awake. They share its quota by demand."""
    for placement in placements:
        model = catalog.get(placement.model)
        if model is None:
            continue
        family = (model, *(a for a in catalog.adapters_of(model.id) if a.id not in asleep))
        quotas = shares(placement.quota_blocks, [demand(m.id) for m in family] if len(family) > 1 else [])
        yield from (member.assignment(quota) for member, quota in zip(family, quotas, strict=True))


def held_by(report: UnitReport, catalog: Catalog) -> UnitPlan:
    """Returns the models of the catalog that a unit has, with what they and their adapters may hold together."""
    quotas = _quotas_with_adapters(report)
    held = [s.model for s in report.models if s.phase in _HELD and catalog.places(s.model)]
    share = report.total_blocks // max(1, len(held))
    models = tuple(ModelPlacement(model=m, quota_blocks=quotas.get(m) or share) for m in held)
    return UnitPlan(unit_id=report.unit_id, models=models)


def _quotas_with_adapters(report: UnitReport) -> Mapping[str, int]:
    bases = {s.model: s.base for s in report.models}
    quotas = Counter[str]()
    for load in () if report.load is None else report.load.models:
        quotas[bases.get(load.model) or load.model] += load.quota_blocks
    return quotas


def shares(quota_blocks: int, demands: list[ModelDemand]) -> list[int]:
    """Half of a quota in equal parts, half by tokens per second in powers of two, so that leases change with what
    matters only. The first has what rounding leaves.
    """
    if not demands:
        return [quota_blocks]
    tokens_per_s = [d.rate_per_s * d.tokens_per_request for d in demands]
    weights = [2.0 ** round(math.log2(tokens)) if tokens >= 1 else 0.0 for tokens in tokens_per_s]
    total = sum(weights) or len(weights)
    weights = weights if any(weights) else [1.0] * len(weights)
    others = [int(quota_blocks * (0.5 / len(weights) + 0.5 * weight / total)) for weight in weights[1:]]
    return [quota_blocks - sum(others), *others]
