"""Says how far a model is, from what units report and what the control loop goes for."""

from deploy.control.fleet_status import ModelState
from deploy.control.usable_units import Fleet
from deploy.fleet_file.model_catalog import CatalogModel
from placement.plan import Plan


def model_state(
    model: CatalogModel, fleet: Fleet, goal: Plan, *, is_asleep: bool, rate_per_s: float, now_s: float
) -> ModelState:
    reports = [u.report for u in fleet.registry]
    statuses = [s for r in reports for s in r.models if s.model == model.id and s.asleep is None]
    error = model.problem or next((s.error for s in statuses if s.error is not None), None)
    error = error or fleet.held_back(model.id, now_s)
    return ModelState(
        model=model.id,
        phases=tuple(s.phase for s in statuses),
        planned_units=goal.units_of(model.id),
        problem=error or goal.unplaced.get(model.id),
        is_asleep=is_asleep,
        asleep_on=tuple(r.unit_id for r in reports if any(s.model == model.id and s.asleep for s in r.models)),
        rate_per_s=rate_per_s,
    )
