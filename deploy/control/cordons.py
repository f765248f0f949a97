"""Knows what is kept from taking new models, and what models move away from, before somebody works on it."""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from enum import StrEnum

from pdmux_actor.lease import UnitReport
from placement.plan import ModelPlacement, Plan
from placement.problem import PlacementModel

_BACK_S = 600.0


class CordonScope(StrEnum):
    UNIT = "unit"
    NODE = "node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cordon:
    """Nothing new is placed on a unit, or on any unit of a node. `drains`: models move away, too. `is_forced`: also
    those that no other unit can hold, which then are not served. `name` is a unit's id or Ray's id of a node.
    """

    scope: CordonScope
    name: str
    drains: bool = False
    is_forced: bool = False

    def holds_for(self, report: UnitReport) -> bool:
        return self.name == (report.unit_id if self.scope is CordonScope.UNIT else report.node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cordons:
    """All that was asked for and not withdrawn: what outlives a control loop. One entry per unit or node."""

    entries: tuple[Cordon, ...] = ()

    def having(self, cordon: Cordon) -> "Cordons":
        return Cordons(entries=(*self.without(cordon.scope, cordon.name).entries, cordon))

    def without(self, scope: CordonScope, name: str) -> "Cordons":
        return Cordons(entries=tuple(c for c in self.entries if (c.scope, c.name) != (scope, name)))

    def on(self, report: UnitReport) -> Cordon | None:
        """Returns the strictest that holds for a unit."""
        held = [c for c in self.entries if c.holds_for(report)]
        return max(held, key=lambda c: (c.drains, c.is_forced), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LostCordon:
    """`lost_s`: when its unit was given up."""

    cordon: Cordon
    lost_s: float


class LostCordons:
    """Keeps the cordons of units that were given up, for a while: one may only have been out of reach, and come back
    as it was.
    """

    def __init__(self) -> None:
        self._lost: dict[str, LostCordon] = {}

    def note(self, cordons: Iterable[Cordon], now_s: float) -> None:
        self._lost = {unit: lost for unit, lost in self._lost.items() if now_s - lost.lost_s <= _BACK_S}
        self._lost |= {cordon.name: LostCordon(cordon=cordon, lost_s=now_s) for cordon in cordons}

    def back(self, unit_id: str, now_s: float) -> Cordon | None:
        """Returns the cordon of a unit that is heard of again, as if for the first time."""
        lost = self._lost.pop(unit_id, None)
        return None if lost is None or now_s - lost.lost_s > _BACK_S else lost.cordon

    def kept(self) -> tuple[LostCordon, ...]:
        return tuple(self._lost.values())

    def restore(self, lost: Iterable[LostCordon]) -> None:
        self._lost |= {one.cordon.name: one for one in lost}


def part_of(plan: Plan, unit_ids: Set[str]) -> Plan:
    """Returns what a plan says of these units: the others are not planned for."""
    return replace(plan, units=tuple(u for u in plan.units if u.unit_id in unit_ids))


def left_on(goal: Plan, found: Plan, cordoned: Mapping[str, Cordon]) -> Mapping[str, tuple[ModelPlacement, ...]]:
    """Returns which of `goal`'s models stay on cordoned units when `found` is adopted: all where nobody drains, and of
    a drained unit those that have no place elsewhere, unless that is forced.
    """
    pinned = [u for u in goal.units if u.unit_id in cordoned and not cordoned[u.unit_id].drains]
    elsewhere = {p.model for u in (*found.units, *pinned) for p in u.models}
    left: dict[str, tuple[ModelPlacement, ...]] = {u.unit_id: u.models for u in pinned}
    for unit in goal.units:
        cordon = cordoned.get(unit.unit_id)
        if cordon is not None and cordon.drains:
            homeless = tuple(p for p in unit.models if p.model not in elsewhere)
            left[unit.unit_id] = () if cordon.is_forced else homeless
    return left


def beside_pinned(model: PlacementModel, goal: Plan, pinned: Set[str]) -> PlacementModel | None:
    """Returns what is left to plan of a model that has replicas on units which are not planned for: None where they
    are all that it must have.
    """
    homes = goal.units_of(model.model) if pinned else ()
    fixed = sum(unit_id in pinned for unit_id in homes)
    if not fixed:
        return model
    at_least = max(model.min_replicas - fixed, min(1, len(homes) - fixed))
    if at_least == 0:
        return None
    return replace(model, min_replicas=at_least, max_replicas=max(at_least, model.max_replicas - fixed))


def homeless_without(goal: Plan, found: Plan, unit_ids: Iterable[str], pinned: Set[str]) -> Mapping[str, str]:
    """Returns which models of `unit_ids` would have no replica if `found` were adopted, and why."""
    going = {p.model for unit_id in unit_ids for p in goal.models_of(unit_id)}
    held = found.placed
    held |= {p.model for u in goal.units if u.unit_id in pinned for p in u.models}
    nowhere = "it is not planned for now: its checkpoint cannot be read, or it does not load"
    return {m: found.unplaced.get(m, nowhere) for m in sorted(going - held)}
