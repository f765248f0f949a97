"""Tells what a fleet goes for, what the planner would do now, and what each move between the two gains and costs."""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

from deploy.control.fleet_status import FleetStatus
from deploy.control.plan_worth import PlanLook
from deploy.inspection.live_fleet import LiveDecision
from deploy.inspection.live_picture import told_decisions
from placement.plan import Plan

_MOST_UNITS = 48
_MOST_MOVES = 64
_DECISIONS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    """`units` of the plan that the fleet goes for, the first of `num_units`. `served_share` is what the planner
    estimates that its units can serve within SLO; None: it has not looked yet.
    """

    model: str
    rate_per_s: float
    units: tuple[str, ...]
    num_units: int
    served_share: float | None
    unplaced: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedUnit:
    """Token blocks by model: of the plan in force, of what the fleet goes for, and of the planner's last look."""

    unit: str
    in_force: Mapping[str, int]
    goal: Mapping[str, int]
    look: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMove:
    """`kind` is load, wake or drain. `load_bytes` are read from disks. `gain`: the share of the model's demand that is
    served within SLO in addition once the whole plan is in force.
    """

    kind: str
    unit: str
    model: str
    load_bytes: int
    gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LookReport:
    """The planner's last answer beside what the fleet goes for: shares of demand that are in time, now and then."""

    why: str
    share_now: float
    share_then: float
    moves: tuple[PlannedMove, ...]
    num_moves: int
    put_to_sleep: tuple[str, ...]
    served_now: Mapping[str, float]
    served_then: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """`units` are the first of `num_units`. `decisions`: newest first."""

    models: tuple[PlannedModel, ...]
    units: tuple[PlannedUnit, ...]
    num_units: int
    look: LookReport | None
    decisions: tuple[LiveDecision, ...]


def plan_report(status: FleetStatus, at_s: float) -> PlanReport:
    """`at_s` is the time of day."""
    look, goal = status.look, status.goal
    plans = [status.plan, goal, *(() if look is None else (look.plan,))]
    quotas = [{u.unit_id: {p.model: p.quota_blocks for p in u.models} for u in plan.units} for plan in plans]
    unit_ids = sorted({u for plan in quotas for u in plan})
    served = {} if look is None else look.now.served_share
    here = {u.report.unit_id for u in status.units}  # others have left since
    homes = _homes(goal)
    return PlanReport(
        models=tuple(
            PlannedModel(
                model=m.model,
                rate_per_s=round(m.rate_per_s, 3),
                units=homes.get(m.model, ())[:_MOST_UNITS],
                num_units=len(homes.get(m.model, ())),
                served_share=served.get(m.model),
                unplaced=goal.unplaced.get(m.model, ""),
            )
            for m in status.models
        ),
        units=tuple(
            PlannedUnit(
                unit=unit,
                in_force=quotas[0].get(unit, {}),
                goal=quotas[1].get(unit, {}),
                look={} if look is None else quotas[2].get(unit, {}),
            )
            for unit in unit_ids[:_MOST_UNITS]
        ),
        num_units=len(unit_ids),
        look=None if look is None else look_report(look, status, here),
        decisions=told_decisions(status, at_s, newest=_DECISIONS),
    )


def look_report(look: PlanLook, status: FleetStatus, units: Set[str]) -> LookReport:
    """`units`: those that are planned for; what moves elsewhere is not told."""
    moves = list(_moves(look, status, units))
    return LookReport(
        why=look.why,
        share_now=look.now.share_in_time,
        share_then=look.then.share_in_time,
        moves=tuple(moves[:_MOST_MOVES]),
        num_moves=len(moves),
        put_to_sleep=look.put_to_sleep,
        served_now=look.now.served_share,
        served_then=look.then.served_share,
    )


def _moves(look: PlanLook, status: FleetStatus, units: Set[str]) -> Iterator[PlannedMove]:
    weights = {m.model: m.weight_bytes for m in status.models}
    asleep = {(u, m.model) for m in status.models for u in m.asleep_on}
    before, after = _places(status.goal), _places(look.plan)
    for unit, model in sorted(before ^ after):
        if unit not in units:
            continue
        gain = look.then.served_share.get(model, 0.0) - look.now.served_share.get(model, 0.0)
        if (unit, model) in before:
            kind, load_bytes = "drain", 0
        elif (unit, model) in asleep:
            kind, load_bytes = "wake", 0
        else:
            kind, load_bytes = "load", weights.get(model, 0)
        yield PlannedMove(kind=kind, unit=unit, model=model, load_bytes=load_bytes, gain=gain)


def _places(plan: Plan) -> set[tuple[str, str]]:
    return {(u.unit_id, p.model) for u in plan.units for p in u.models}


def _homes(plan: Plan) -> Mapping[str, tuple[str, ...]]:
    homes: dict[str, list[str]] = {}
    for unit in plan.units:
        for placed in unit.models:
            homes.setdefault(placed.model, []).append(unit.unit_id)
    return {model: tuple(units) for model, units in homes.items()}
