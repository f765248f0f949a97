"""The fleet as a gateway knows it while the control loop does not answer."""

from deploy.commands.fitted_table import FittedTable
from deploy.commands.fleet_tables import context_cell, listed, short_names, unit_dict, unit_table
from deploy.commands.table_cells import fitted
from deploy.control.fleet_status import ModelState, UnitStatus
from pdmux_actor.lease import ModelPhase
from router.known_fleet import KnownFleet


def known_age(known: KnownFleet) -> str:
    return f"what a gateway was told of the fleet {known.age_s:.0f} s ago, without plan, demand and decisions:"


def known_model_table(known: KnownFleet) -> FittedTable:
    names = short_names([u.report.unit_id for u in known.units])
    table = fitted("model", "status", "context", "on", "asleep on")
    for model in _models(known):
        holders = [
            names[u.report.unit_id]
            for u in known.units
            if any(s.model == model.model and s.phase is not ModelPhase.ASLEEP for s in u.report.models)
        ]
        context = context_cell(model.model, [u.report for u in known.units])
        asleep_on = listed([names[unit_id] for unit_id in model.asleep_on])
        table.add_row(model.model, model.state, context, listed(holders), asleep_on)
    return table


def known_unit_table(known: KnownFleet) -> FittedTable:
    return unit_table(_units(known))


def known_dict(known: KnownFleet) -> dict[str, object]:
    """Returns it as plain data for scripts, with the keys of a status where it has the same."""
    models = [{"id": m.model, "status": m.state, "asleep_on": list(m.asleep_on)} for m in _models(known)]
    return {"told_s_ago": known.age_s, "models": models, "units": [unit_dict(u) for u in _units(known)]}


def _models(known: KnownFleet) -> tuple[ModelState, ...]:
    return tuple(_model(known, card.model, can_wake=card.can_wake) for card in known.models)


def _model(known: KnownFleet, model: str, *, can_wake: bool) -> ModelState:
    told = [(u.report.unit_id, s.phase) for u in known.units for s in u.report.models if s.model == model]
    phases = tuple(phase for _, phase in told if phase is not ModelPhase.ASLEEP)
    return ModelState(
        model=model,
        phases=phases,
        planned_units=(),
        problem=None,
        is_asleep=can_wake and not phases,
        asleep_on=tuple(unit_id for unit_id, phase in told if phase is ModelPhase.ASLEEP),
    )


def _units(known: KnownFleet) -> tuple[UnitStatus, ...]:
    return tuple(UnitStatus(report=u.report, silent_s=u.age_s + known.age_s) for u in known.units)
