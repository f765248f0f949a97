"""The leases given out, with versions that only grow, and the part that adapters have in them."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from types import MappingProxyType

from deploy.fleet_file.model_catalog import Catalog
from pdmux_actor.lease import Lease, ModelAssignment, ModelPhase, ModelStatus, UnitReport
from placement.demand import ModelDemand
from placement.plan import ModelPlacement, UnitPlan


class LeaseBook:
    """`first_version` must exceed the versions of any control loop that led the same units before: a unit ignores
    leases that are older than the newest it has seen.
    """

    def __init__(self, *, stream_token: str, first_version: int) -> None:
        self._stream_token = stream_token
        self._version = first_version
        self._leases: dict[str, Lease] = {}

    def current(self, unit_id: str) -> Lease | None:
        return self._leases.get(unit_id)

    def on_the_way(self, report: UnitReport) -> frozenset[str]:
        """Models of a lease that the unit had not seen when it reported: by now it may load them."""
        lease = self._leases.get(report.unit_id)
        if lease is None or lease.version <= report.lease_version:
            return frozenset()
        return frozenset(a.model for a in lease.models if a.base is None)

    def has_dropped(self, unit_id: str, told: ModelStatus) -> bool:
        """The unit was told to let it go, or its weights; what it last reported may be older than that."""
        lease = self._leases.get(unit_id)
        if lease is None:
            return False
        leased = next((a for a in lease.models if a.model == told.model), None)
        return leased is None or (told.origin is not None and told.origin != leased.origin)

    def renew(
        self,
        report: UnitReport,
        models: tuple[ModelAssignment, ...],
        policy: str,
        asleep: tuple[ModelAssignment, ...] = (),
        pool_blocks: int | None = None,
        finish_s: Mapping[str, float] = MappingProxyType({}),
    ) -> Lease:
        """The same lease again while nothing in it changes and the unit has seen nothing newer."""
        old = self._leases.get(report.unit_id)
        if (
            old is not None
            and (old.models, old.policy, old.asleep) == (models, policy, asleep)
            and (old.pool_blocks, old.finish_s) == (pool_blocks, finish_s)
            and report.lease_version <= old.version
        ):
            return old
        self._version = max(self._version, report.lease_version) + 1
        lease = Lease(
            version=self._version,
            models=models,
            policy=policy,
            stream_token=self._stream_token,
            asleep=asleep,
            pool_blocks=pool_blocks,
            finish_s=dict(finish_s),
        )
        self._leases[report.unit_id] = lease
        return lease

    def forget(self, unit_id: str) -> None:
        self._leases.pop(unit_id, None)


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
