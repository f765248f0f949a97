"""Hands over from one control loop to the next: collects what must not be forgotten, and gives it back."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace

from deploy.control.control_rules import ControlRules
from deploy.control.control_state import ControlState
from deploy.control.decision_history import DecisionHistory
from deploy.control.pool_scaling import PoolScaling
from deploy.control.popularity import Popularity
from deploy.control.scale_to_zero import ScaleToZero
from deploy.control.transition import Transition
from deploy.control.usable_units import Fleet
from deploy.fleet_file.model_catalog import Catalog
from placement.plan import Plan, UnitPlan


class Succession:
    """Units that the control loop before led go on with its plan for them, and no plan is due because they are heard of
    for the first time: until all are back, or given up.
    """

    def __init__(
        self,
        popularity: Popularity,
        history: DecisionHistory,
        scale_to_zero: ScaleToZero,
        transition: Transition,
        fleet: Fleet,
        scaling: PoolScaling,
    ) -> None:
        self._popularity = popularity
        self._history = history
        self._scale_to_zero = scale_to_zero
        self._transition = transition
        self._fleet = fleet
        self._scaling = scaling
        self._before: ControlState | None = None
        self._awaited: set[str] = set()

    def state(
        self, wanted: str, plan: Plan, goal: Plan, asleep: frozenset[str], *, is_plan_due: bool, now_s: float
    ) -> ControlState:
        replicas, moves_s = self._transition.kept()
        return ControlState(
            noted_s=now_s,
            wanted=wanted,
            is_plan_due=is_plan_due,
            plan=plan,
            goal=goal,
            asleep=tuple(sorted(asleep)),
            demand=self._popularity.kept(),
            used_s=self._scale_to_zero.kept(),
            replicas=replicas,
            moves_s=moves_s,
            deaths=self._fleet.kept(),
            decisions=self._history.kept(),
            cordons=self._fleet.cordons,
            lost_cordons=self._fleet.lost_cordons.kept(),
            steps=self._fleet.learning.kept,
            sizes=self._scaling.kept(),
            strains=self._fleet.neighbours.kept(),
            forecasts=self._scaling.forecasts.kept(),
        )

    def take_over(self, state: ControlState) -> None:
        """Gives the parts what they must not forget; before anything is heard."""
        self._popularity.restore(state.demand)
        self._history.restore(state.decisions)
        for model, used_s in state.used_s.items():
            self._scale_to_zero.keep(model, used_s)
        self._transition.restore(state.replicas, state.moves_s)
        self._fleet.restore(state.deaths)
        self._fleet.cordons = state.cordons
        self._fleet.lost_cordons.restore(state.lost_cordons)
        self._scaling.restore(state.sizes)
        self._fleet.learning.evidence.restore(state.steps, state.noted_s)
        self._fleet.neighbours.restore(state.strains)
        self._scaling.forecasts.restore(state.forecasts)
        self._before = state
        self._awaited = {u.unit_id for u in state.goal.units}

    def wanted_the_same(self, wanted: str) -> bool:
        return self._before is not None and self._before.wanted == wanted

    def plans_of(self, held: UnitPlan) -> tuple[UnitPlan, UnitPlan] | None:
        """A unit's share of plan and goal; None for a unit that the one before did not lead. `held` is what the unit
        has, as a lease may have been newer than what was kept.
        """
        if self._before is None or held.unit_id not in self._awaited:
            return None
        self._awaited.discard(held.unit_id)
        plan, goal = self._before.plan.models_of(held.unit_id), self._before.goal.models_of(held.unit_id)
        has = {p.model for p in held.models}
        known = {p.model for p in (*plan, *goal)}
        strays = tuple(p for p in held.models if p.model not in known)
        in_force = tuple(p for p in plan if p.model in has)
        return replace(held, models=in_force + strays), replace(held, models=goal + strays)

    def given_up(self) -> tuple[str, ...]:
        """Ends the handing over and returns the units that did not come back."""
        gone, self._awaited, self._before = tuple(sorted(self._awaited)), set(), None
        for unit_id in gone:
            self._transition.forget(unit_id)
        return gone


def wanted_digest(catalog: Catalog, expected_units: Mapping[str, int], rules: ControlRules) -> str:
    """Tells whether two fleet files ask the control loop for the same, as far as a plan depends on it."""
    parts = [m.settings.model_dump_json() for m in catalog.models]
    parts += [catalog.policy, repr(sorted(expected_units.items())), repr(rules)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
