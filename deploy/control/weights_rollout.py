"""Gives the units of a model other weights a few at a time: the others serve on with those that they have."""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from deploy.control.decision_history import DecisionHistory
from deploy.control.leases import LeaseBook
from deploy.control.plan_migration import PlanMigration
from deploy.control.plan_solution import Solution
from deploy.control.usable_units import Fleet
from deploy.fleet_file.model_catalog import Catalog
from pdmux_actor.lease import ModelAssignment, ModelPhase, ModelStatus, UnitReport
from router.telemetry.fleet_event import EventKind

_SHARE = 4  # one of so many units is given them at once
_SERVING = frozenset({ModelPhase.READY, ModelPhase.STALLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRights:
    """Says what may be done now. `may_change`: all units have been heard. `may_interrupt`: plans know of the change,
    and none is due.
    """

    may_change: bool
    may_interrupt: bool


class WeightsRollout:
    """Derives whose turn it is from the weights that each unit reports: a control loop that restarts goes on. An
    adapter comes with its base. A unit of a release that does not tell its weights is given the new ones at once. A
    model's only replica stays until another one has the new weights, where a unit has room for it, or one that went may
    be replaced soon.
    """

    def __init__(self, fleet: Fleet, leases: LeaseBook, history: DecisionHistory) -> None:
        self._fleet = fleet
        self._leases = leases
        self._history = history
        self.doubled: frozenset[str] = frozenset()
        """Models with one replica, of other weights, which plans give a second one beside it."""

    # ---- plans ----

    def look(self, catalog: Catalog, migration: PlanMigration, now_s: float) -> str | None:
        """Returns why another plan is due. A replica that has been replaced is left out of the goal."""
        old = self._old(catalog)
        has_others = len(self._fleet.usable(now_s)) > 1
        lone = {m for m, units in old.items() if has_others and [*migration.plan.units_of(m)] == units[:1]}
        done = set[str]()
        for model in self.doubled:
            new = [u for u in migration.plan.units_of(model) if u not in old.get(model, ())]
            if model not in old:
                done.add(model)
            elif any(self._fleet.at(now_s).serves(u, model) for u in new):
                done.add(model)
                for unit_id in old[model]:
                    migration.retire(unit_id, model)
        begun = lone - self.doubled - done
        self.doubled = (self.doubled | begun) - done
        if begun or done:
            return f"{', '.join(sorted(begun | done))}: other weights"
        return None

    def without_wishes(self, solution: Solution) -> Solution:
        """Returns what was found without complaints of second replicas that have no room."""
        unplaced = {m: why for m, why in solution.plan.unplaced.items() if m not in self.doubled}
        return replace(solution, plan=replace(solution.plan, unplaced=unplaced))

    def _old(self, catalog: Catalog) -> Mapping[str, list[str]]:
        """Returns, by model that is placed, the units that serve other weights, its own or its adapters'."""
        wanted = {m.id: m.assignment(0) for m in catalog.models}
        found: dict[str, list[str]] = {}
        for unit in self._fleet.registry.staying():
            for status in unit.report.models:
                named = wanted.get(status.model)
                if named is not None and status.phase in _SERVING and self._is_other(unit.unit_id, status, named):
                    units = found.setdefault(named.base or named.model, [])
                    if unit.unit_id not in units:
                        units.append(unit.unit_id)
        return found

    # ---- leases ----

    def in_turn(
        self,
        report: UnitReport,
        wanted: Sequence[ModelAssignment],
        catalog: Catalog,
        migration: PlanMigration,
        rights: RolloutRights,
        now_s: float,
    ) -> tuple[ModelAssignment, ...]:
        """Returns what a unit is leased of what is wanted there: a model whose turn has not come as the unit has it."""
        unit_id, has = report.unit_id, {s.model: s for s in report.models if s.phase in _SERVING}
        old = {a.model for a in wanted if self._is_other(unit_id, has.get(a.model), a)}
        if not old:
            return tuple(wanted)
        leased: list[ModelAssignment] = []
        for place, family in _families(wanted):
            if old.isdisjoint(a.model for a in family):
                leased += family
                continue
            others = {*migration.plan.units_of(place), *migration.goal.units_of(place)} - {unit_id}
            is_staying = unit_id in migration.goal.units_of(place)
            if others:
                is_turn = self._is_turn(place, family, others, now_s)
            else:
                is_turn = rights.may_interrupt and not self._fleet.registry.awaits_another(now_s)
            if is_turn and is_staying and rights.may_change and _is_read(catalog, place):
                beside = f"{len(others)} replicas beside it" if others else "no replica beside it"
                self._history.note(now_s, EventKind.WEIGHTS, f"{place} is given other weights on {unit_id}, {beside}")
                leased += family
            else:
                leased += _as_it_is(family, has, old)
        return tuple(leased)

    def _is_other(self, unit_id: str, status: ModelStatus | None, wanted: ModelAssignment) -> bool:
        """The unit serves other weights, and was not told yet to let them go."""
        if status is None or status.origin is None or status.origin == wanted.origin:
            return False
        return not self._leases.has_dropped(unit_id, status)

    def _is_turn(self, place: str, family: Sequence[ModelAssignment], others: Set[str], now_s: float) -> bool:
        """The others serve meanwhile, but for those whose turn it is, too."""
        names = frozenset(a.model for a in family)
        away = sum(not self._fleet.at(now_s).serves(other, place, names) for other in others)
        return away < min(len(others), max(1, (len(others) + 1) // _SHARE))


def _is_read(catalog: Catalog, place: str) -> bool:
    """The shape of the new weights is known: who cannot be read now does not replace what is served."""
    model = catalog.get(place)
    return model is not None and model.spec is not None


def _families(wanted: Sequence[ModelAssignment]) -> Iterator[tuple[str, list[ModelAssignment]]]:
    """Each model that is placed with its adapters."""
    families: dict[str, list[ModelAssignment]] = {}
    for assignment in wanted:
        families.setdefault(assignment.base or assignment.model, []).append(assignment)
    yield from families.items()


def _as_it_is(
    family: Sequence[ModelAssignment], has: Mapping[str, ModelStatus], old: set[str]
) -> Iterator[ModelAssignment]:
    """An adapter that is new is one of the new base, where that is new, too."""
    for assignment in family:
        status = has.get(assignment.model)
        if assignment.model in old and status is not None and status.origin is not None:
            yield assignment.loaded_from(status.origin)
        elif assignment.base not in old or status is not None:
            yield assignment
