"""Decides which models a unit keeps in host memory once they have left its device."""

from collections.abc import Callable

from deploy.fleet_file.model_catalog import Catalog
from pdmux_actor.lease import ModelAssignment, ModelPhase, UnitReport
from placement.plan import Plan

LastUsed = Callable[[str], float]


def sleepers_of(
    report: UnitReport, plan: Plan, goal: Plan, catalog: Catalog, last_used_s: LastUsed
) -> tuple[ModelAssignment, ...]:
    """Returns the models that sleep on the unit: those it has and does not serve, as far as its host memory admits:
    first those that wake there once there is room, then those that were used last. By what it reports alone: a unit
    that restarts has nobody asleep, and a control loop that restarts finds who is.
    """
    placed, awaited = ({m.model for m in p.models_of(report.unit_id)} for p in (plan, goal))
    left_bytes = report.host_memory_bytes
    kept: list[ModelAssignment] = []
    left = [s for s in report.models if s.model not in placed and s.phase is not ModelPhase.FAILED]
    has = [(s, model) for s in left if (model := catalog.get(s.model)) is not None and model.base is None]
    has.sort(key=lambda pair: (pair[1].id not in awaited, -last_used_s(pair[1].id), pair[1].id))
    for status, model in has:
        if status.asleep is not None:
            needed_bytes = status.asleep.host_bytes
        elif model.spec is not None:
            needed_bytes = model.spec.weight_bytes
        else:
            continue
        if needed_bytes <= left_bytes:
            left_bytes -= needed_bytes
            kept.append(model.assignment(0))
    return tuple(sorted(kept, key=lambda a: a.model))
