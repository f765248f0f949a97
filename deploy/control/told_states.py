"""Says how far models and units are: for a person who asks, and for Serve, which may stop the next unit only then."""

from collections import defaultdict
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from deploy.control.fleet_status import ModelState, UnitStatus
from deploy.control.leases import LeaseBook
from deploy.control.model_needs import ModelNeeds
from deploy.control.usable_units import Fleet
from deploy.fleet_file.model_catalog import CatalogModel
from pdmux_actor.lease import LoadProgress, LoadStage, ModelPhase, ModelStatus
from placement.plan import Plan
from router.view import ModelCard

_WITHOUT_WEIGHTS = frozenset({ModelPhase.ASLEEP, ModelPhase.FAILED})


@dataclass(frozen=True, slots=True)
class _Told:
    """`is_other`: of other weights than the fleet file names."""

    unit_id: str
    status: ModelStatus
    is_other: bool


def model_states(needs: ModelNeeds, leases: LeaseBook, asleep: Set[str], now_s: float) -> tuple[ModelState, ...]:
    """A unit that has not heard yet that it shall have other weights of a model is on the way there."""
    wanted = {m.id: m.card().weights for m in needs.catalog.models}
    told: dict[str, list[_Told]] = defaultdict(list)
    for unit in needs.fleet.registry:
        for status in unit.report.models:
            if status.phase is ModelPhase.READY and leases.has_dropped(unit.unit_id, status):
                status = replace(status, phase=ModelPhase.LOADING)
            weights = unit.report.weights_of(status)
            is_other = bool(weights) and wanted.get(status.model, weights) != weights
            told[status.model].append(_Told(unit.unit_id, status, is_other))
    return tuple(_model_state(m, needs, told.get(m.id, []), m.id in asleep, now_s) for m in needs.catalog.models)


def model_cards(needs: ModelNeeds, now_s: float) -> tuple[ModelCard, ...]:
    """Returns what gateways are told of each model; who waits for an adapter waits for its base."""
    return tuple(replace(m.card(), problem=_lasting_problem(m, needs, now_s) or "") for m in needs.catalog.models)


def _lasting_problem(model: CatalogModel, needs: ModelNeeds, now_s: float) -> str | None:
    """Says why no unit will load a model, whoever asks."""
    placed = needs.catalog.get(needs.catalog.place_of(model.id)) or model
    unread = model.problem or (placed.problem if placed.spec is None else None)
    return unread or needs.fleet.held_back(placed.id, now_s)


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
    model: CatalogModel, needs: ModelNeeds, told: Sequence[_Told], is_asleep: bool, now_s: float
) -> ModelState:
    place = needs.catalog.place_of(model.id)
    statuses = [t.status for t in told if t.status.asleep is None]
    error = model.problem or next((s.error for s in statuses if s.error is not None), None)
    error = error or needs.fleet.held_back(place, now_s)
    planned, problem = needs.goal.units_of(place), error or _unplaced(place, needs, now_s)
    has_turns = (needs.catalog.get(place) or model).settings.replicas.min == 0
    return ModelState(
        model=model.id,
        phases=tuple(s.phase for s in statuses),
        planned_units=planned,
        problem=problem,
        is_asleep=is_asleep or (has_turns and not (statuses or planned or problem)),
        asleep_on=tuple(t.unit_id for t in told if t.status.asleep),
        with_other_weights=sum(t.is_other and t.status.phase not in _WITHOUT_WEIGHTS for t in told),
        with_its_weights=sum(not t.is_other and t.status.phase is ModelPhase.READY for t in told),
        progress=max((s.progress for s in statuses if s.progress is not None), key=_progressed, default=None),
        rate_per_s=needs.popularity.demand(model.id).rate_per_s,
        asked=needs.popularity.asked(model.id, now_s),
        slo=model.slo,
        weight_bytes=0 if model.spec is None else model.spec.weight_bytes,
    )


def _unplaced(place: str, needs: ModelNeeds, now_s: float) -> str | None:
    """A remedy of the plan is none where a unit that is there takes no models for a while."""
    why = needs.goal.unplaced.get(place)
    return why and "; ".join(filter(None, (why, needs.fleet.why_left_out(now_s))))


def _progressed(progress: LoadProgress) -> tuple[int, float]:
    return tuple(LoadStage).index(progress.stage), progress.share


_AT_REST = frozenset({ModelPhase.READY, ModelPhase.FAILED})


def is_settled(unit_id: str, fleet: Fleet, goal: Plan, *, is_plan_due: bool, now_s: float) -> bool:
    """A unit that came is settled when it holds what it shall, one that was told to leave when it holds nothing that
    could move: to units that are there, or are still to come, as where a pool was renamed. Where no other unit
    serves anything, nobody has to wait for one that comes.
    """
    unit = fleet.registry.get(unit_id)
    if unit is None:
        return False
    on_device = fleet.lingering(unit_id)
    if unit.report.wants_to_leave:
        return not on_device or not (fleet.usable(now_s) or fleet.registry.lacks_pools())
    if not fleet.is_anything_ready_beside(unit_id):
        return True
    if is_plan_due:
        return False
    models = on_device | {p.model for p in goal.models_of(unit_id)}
    return all(fleet.phase(unit_id, model) in _AT_REST for model in models)
