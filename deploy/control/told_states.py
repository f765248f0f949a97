"""Says how far models and units are, for a person who asks."""

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from deploy.control.fleet_status import ModelState, UnitStatus
from deploy.control.leases import LeaseBook
from deploy.control.model_needs import ModelNeeds
from deploy.control.usable_units import Fleet
from deploy.fleet_file.model_catalog import CatalogModel
from pdmux_actor.lease import LoadProgress, LoadStage, ModelAssignment, ModelPhase, ModelStatus, UnitReport


def model_states(needs: ModelNeeds, leases: LeaseBook, asleep: Set[str], now_s: float) -> tuple[ModelState, ...]:
    """A unit that has not heard yet that a model shall have other weights is on the way there."""
    wanted = {m.id: m.assignment(0) for m in needs.catalog.models}
    statuses: dict[str, list[tuple[str, ModelStatus]]] = defaultdict(list)
    for unit in needs.fleet.registry:
        for status in unit.report.models:
            if status.phase is ModelPhase.READY and not _has_taken(leases, unit.report, wanted, status.model):
                status = replace(status, phase=ModelPhase.LOADING)
            statuses[status.model].append((unit.unit_id, status))
    return tuple(_model_state(m, needs, statuses.get(m.id, []), m.id in asleep, now_s) for m in needs.catalog.models)


def _has_taken(leases: LeaseBook, report: UnitReport, wanted: Mapping[str, ModelAssignment], model: str) -> bool:
    """With the weights of its base, where it is an adapter."""
    named = wanted.get(model)
    if named is None:
        return True
    base = None if named.base is None else wanted.get(named.base)
    return leases.has_taken(report, named) and (base is None or leases.has_taken(report, base))


def unit_states(fleet: Fleet, now_s: float) -> tuple[UnitStatus, ...]:
    return tuple(
        UnitStatus(
            report=u.report,
            silent_s=max(0.0, now_s - u.heard_s),
            out_for_s=fleet.out_for_s(u.unit_id, now_s),
            cordon=fleet.cordon_on(u.report),
            correction=fleet.learning.of_unit(u.unit_id, u.report.pool),
            residuals=tuple(fleet.learning.evidence.residuals(u.unit_id)),
        )
        for u in fleet.registry
    )


def _model_state(
    model: CatalogModel, needs: ModelNeeds, told: Sequence[tuple[str, ModelStatus]], is_asleep: bool, now_s: float
) -> ModelState:
    place = needs.catalog.place_of(model.id)
    statuses = [s for _, s in told if s.asleep is None]
    error = model.problem or next((s.error for s in statuses if s.error is not None), None)
    error = error or needs.fleet.held_back(model.id, now_s)
    return ModelState(
        model=model.id,
        phases=tuple(s.phase for s in statuses),
        planned_units=needs.goal.units_of(place),
        problem=error or needs.goal.unplaced.get(place),
        is_asleep=is_asleep,
        asleep_on=tuple(unit_id for unit_id, s in told if s.asleep),
        progress=max((s.progress for s in statuses if s.progress is not None), key=_progressed, default=None),
        rate_per_s=needs.popularity.demand(model.id).rate_per_s,
        asked=needs.popularity.asked(model.id, now_s),
        slo=model.slo,
        weight_bytes=0 if model.spec is None else model.spec.weight_bytes,
    )


def _progressed(progress: LoadProgress) -> tuple[int, float]:
    return tuple(LoadStage).index(progress.stage), progress.share
