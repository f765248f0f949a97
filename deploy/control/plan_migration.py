"""Follows the plan that leases say to the one they shall say, and remembers where that way has come to."""

from collections.abc import Callable, Iterator, Set
from dataclasses import replace

from deploy.control.control_rules import ControlRules
from deploy.control.cordons import left_on, part_of
from deploy.control.model_needs import kept_plan
from deploy.control.plan_choice import Needs, goal_of, same_places
from deploy.control.plan_solution import Solution
from deploy.control.transition import Transition, failed_move, without_replica, without_unit
from deploy.control.usable_units import Fleet
from deploy.fleet_file.model_catalog import Catalog
from placement.plan import Plan, UnitPlan
from placement.plan_steps import SetQuotasStep, Step


class PlanMigration:
    """`plan` is what leases say, `goal` what they shall say. `is_busy`: it moves, and does not just wait until replicas
    have stayed long enough.
    """

    def __init__(self, fleet: Fleet, rules: ControlRules) -> None:
        self.transition = Transition(rules)
        self.plan = Plan(units=())
        self.goal = Plan(units=())
        self.is_busy = False
        self._fleet = fleet
        self._is_moving = False

    def take_over(self, goal: Plan) -> None:
        """Goes on to the goal of the control loop before; its units come as they are heard."""
        self.goal = replace(goal, units=())
        self._is_moving = self.is_busy = True

    def adopt_unit(self, held: UnitPlan, in_force: UnitPlan, goal: UnitPlan, now_s: float) -> None:
        """A unit is here: what it holds, and its share of plan and goal."""
        self.plan = replace(self.plan, units=(*self.plan.units, in_force))
        self.goal = replace(self.goal, units=(*self.goal.units, goal))
        self.transition.adopt(held, now_s)

    def leave_out(self, unit_id: str) -> None:
        self.plan, self.goal = without_unit(self.plan, unit_id), without_unit(self.goal, unit_id)

    def forget(self, unit_id: str) -> None:
        """It is gone, and so is what was known of its replicas."""
        self.leave_out(unit_id)
        self.transition.forget(unit_id)

    def planned_goal(self, needs: Needs) -> Plan:
        """Returns the goal's part that plans are made for."""
        return part_of(self.goal, {u.unit_id for u in needs.units})

    def take_back_loads(self, now_s: float) -> None:
        """Units that may take no models any more, as cordoned ones, do not get what has not begun to load there."""
        usable = {u.unit_id for u in self._fleet.usable(now_s)}
        if not self._is_moving or usable.issuperset(u.unit_id for u in self.goal.units):
            return
        begun = {u.unit_id: {p.model for p in u.models} for u in self.plan.units}
        units = (
            u
            if u.unit_id in usable
            else replace(u, models=tuple(p for p in u.models if p.model in begun.get(u.unit_id, ())))
            for u in self.goal.units
        )
        self.goal = replace(self.goal, units=tuple(units))

    def set_out(self, solution: Solution, catalog: Catalog, unknown: Set[str] = frozenset()) -> bool:
        """Makes a solution the goal, which was found without `unknown` models. Returns whether any model's places
        change.
        """
        kept = {u.unit_id: u.models for u in kept_plan(self.goal, catalog, unknown)}
        kept |= left_on(self.goal, solution.plan, self._fleet.cordoned())
        goal = goal_of(solution.plan, kept, [u.unit_id for u in self._fleet.registry.staying()])
        is_other = not same_places(self.goal, goal)
        self.goal = goal
        self._is_moving = self.is_busy = True
        return is_other

    def retire(self, unit_id: str, model: str) -> None:
        """Has a replica go that another one replaces, however short it has stayed."""
        self.transition.release(unit_id, model)
        self.goal = without_replica(self.goal, unit_id, model)
        self._is_moving = self.is_busy = True

    def give_up_failed(self, now_s: float) -> Iterator[tuple[str, str]]:
        """Yields units and models that do not load there: they stay where they are ready."""
        while self._is_moving and (failed := failed_move(self.plan, self.goal, self._fleet.at(now_s))) is not None:
            unit_id, model = failed
            self._fleet.hold_back(model, f"it does not load on {unit_id}", now_s)
            self.plan = self.goal = without_replica(self.plan, unit_id, model)
            yield failed

    def advance(self, needs_now: Callable[[], Needs], now_s: float) -> tuple[Step, ...] | None:
        """Takes the steps that are due, and returns those that move models; None: the plan no longer fits. Steps are
        worked out from what units report, so failures on the way need no undoing.
        """
        if not self._is_moving:
            return ()
        self.take_back_loads(now_s)  # an answer may be older than a cordon
        needs = needs_now()
        fits = needs.memory_test()
        if not needs.holds(self.planned_goal(needs), fits):
            return None
        sized, drained = {m.model for m in needs.models}, self._fleet.drained()
        progress = self.transition.advance(
            self.plan,
            self.goal,
            self._fleet.at(now_s),
            fits=fits,
            now_s=now_s,
            sized=sized,
            drained=drained,
            unknown=needs.unknown,
        )
        self.plan, self._is_moving = progress.plan, not progress.is_done
        self.is_busy = self._is_moving and not progress.only_stays
        return tuple(s for s in progress.taken if not isinstance(s, SetQuotasStep))
