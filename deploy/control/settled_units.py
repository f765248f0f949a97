"""Tells when a unit is what it shall be: then Serve may stop the next one, or this one."""

from deploy.control.usable_units import Fleet
from pdmux_actor.lease import ModelPhase
from placement.plan import Plan

_AT_REST = frozenset({ModelPhase.READY, ModelPhase.FAILED})


def is_settled(unit_id: str, fleet: Fleet, goal: Plan, *, is_plan_due: bool, now_s: float) -> bool:
    """A unit that came is settled when it holds what it shall, one that was told to leave when it holds nothing that
    could move. Where no other unit serves anything, nobody has to wait for one that comes.
    """
    unit = fleet.registry.get(unit_id)
    if unit is None:
        return False
    on_device = fleet.lingering(unit_id)
    if unit.report.wants_to_leave:
        return not on_device or not fleet.usable(now_s)
    if not fleet.is_anything_ready_beside(unit_id):
        return True
    if is_plan_due:
        return False
    models = on_device | {p.model for p in goal.models_of(unit_id)}
    return all(fleet.phase(unit_id, model) in _AT_REST for model in models)
