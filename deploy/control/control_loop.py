"""Decides which unit serves what. Pure: told what is reported and what time it is, it answers leases and views."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from deploy.control.control_rules import ControlRules, ControlTiming
from deploy.control.control_state import ControlState
from deploy.control.cordons import Cordon, Cordons
from deploy.control.decision_history import DecisionHistory
from deploy.control.demand_forecasts import at_least
from deploy.control.fleet_costs import FleetCosts
from deploy.control.fleet_status import FleetStatus
from deploy.control.flight_recorder import FlightRecorder
from deploy.control.host_memory_models import sleepers_of
from deploy.control.leases import LeaseBook, assignments, held_by
from deploy.control.model_needs import ModelNeeds, explain_also
from deploy.control.model_turns import ModelTurns
from deploy.control.plan_choice import Needs
from deploy.control.plan_migration import PlanMigration
from deploy.control.plan_requests import Asked, PlanRequests, verdict_on
from deploy.control.plan_solution import Solution
from deploy.control.planner import PlanAnswer, Planner, PlanTask
from deploy.control.pool_scaling import PoolScaling, ScaledPool
from deploy.control.popularity import Popularity
from deploy.control.scale_to_zero import ScaleToZero
from deploy.control.succession import Succession, wanted_digest
from deploy.control.told_states import is_settled, model_cards, model_states, unit_states
from deploy.control.transition import in_words
from deploy.control.unit_registry import Lost
from deploy.control.usable_units import Fleet
from deploy.control.weights_rollout import RolloutRights, WeightsRollout
from deploy.fleet_file.model_catalog import Catalog
from pdmux_actor.lease import Lease, UnitReport
from placement.plan import Plan
from placement.plan_explanation import Explanation
from router.admission.demand_report import DemandReport
from router.view import FleetView, UnitView

_TICK_S = 0.2  # heartbeats of a large fleet come thick and fast
_LARGE_FLEET = 64  # units: in all but a few heartbeats there is news, and each tick looks at all units


class ControlLoop:
    """Observe, estimate demand, plan, and move one step at a time; each call does what is due.

    `first_version` must exceed the versions of any control loop that led the same units before. `epoch_s` returns
    what added to its clock is the time of day, `stood_s` for how long in all that clock has stood.
    """

    def __init__(
        self,
        *,
        stream_token: str,
        first_version: int,
        started_s: float,
        rules: ControlRules | None = None,
        recorder: FlightRecorder | None = None,
        epoch_s: Callable[[], float] = lambda: 0.0,
        stood_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._stream_token = stream_token
        self._started_s = started_s
        self._timing = ControlTiming()
        self._catalog = Catalog(models=(), policy="mux")
        self._catalog_version = first_version  # another control loop begins with another one
        self._requests: PlanRequests | None = None
        self._popularity = Popularity(stood_s)
        recorder = recorder or FlightRecorder()
        self._history = DecisionHistory(recorder)
        self._scale_to_zero = ScaleToZero(self._popularity)
        self._leases = LeaseBook(stream_token=stream_token, first_version=first_version)
        self._rules = rules or ControlRules()
        self._costs = FleetCosts()
        self._fleet = Fleet(self._timing, self._rules, self._leases, stood_s)
        self._migration = PlanMigration(self._fleet, self._rules)
        self._rollout = WeightsRollout(self._fleet, self._leases, self._history)
        self._turns = ModelTurns(recorder)
        self.scaling = PoolScaling(self._fleet, self._history, epoch_s)
        parts = (self._popularity, self._history, self._scale_to_zero, self._migration.transition, self._fleet)
        self._succession = Succession(*parts, self.scaling)
        self._wanted = ""
        self._asleep: frozenset[str] = frozenset()
        self._foreseen: frozenset[str] = frozenset()
        self._why: str | None = "the control loop started"  # a plan is due, whatever demand says
        self._is_settled = False
        self._looked_s = started_s
        self._ticked_s = float("-inf")

    def open_to_units(self, now_s: float) -> None:
        """Lets what a fresh control loop waits for units count from now on: nobody could reach it before."""
        self._started_s = now_s

    def take_over(self, state: ControlState) -> None:
        """Goes on where the control loop before ended, before anything is heard; its times are on this one's clock."""
        self._succession.take_over(state)
        self._migration.take_over(state.goal)
        self._asleep = frozenset(state.asleep)
        self._why = self._why if state.is_plan_due else None

    def state(self, now_s: float) -> ControlState | None:
        """Returns what a successor needs; None before this control loop has settled itself."""
        if not self._is_settled:
            return None
        plan, goal, due = self._migration.plan, self._migration.goal, self._is_plan_due
        return self._succession.state(self._wanted, plan, goal, self._asleep, is_plan_due=due, now_s=now_s)

    @property
    def _is_plan_due(self) -> bool:
        return self._why is not None or self._requests is None or self._requests.is_awaited

    def set_catalog(
        self,
        catalog: Catalog,
        *,
        expected_units: Mapping[str, int],
        planner: Planner,
        rules: ControlRules | None = None,
        costs: FleetCosts | None = None,
        scaling: Mapping[str, ScaledPool] | None = None,
    ) -> None:
        """`expected_units` counts the units of each pool once the fleet is up; `scaling` has all pools or none."""
        before, self._catalog = self._catalog, catalog
        self._catalog_version += 1
        self._requests = PlanRequests(planner) if self._requests is None else self._requests.led_by(planner)
        self._costs = costs or self._costs
        self._fleet.registry.expect(expected_units, self._costs)
        self._popularity.expect(m.prior() for m in catalog.models)
        self.scaling.follow(scaling or {})
        if rules is not None:
            self.scaling.ceilings = rules.ceilings
            self._rules = self._migration.transition.rules = rules
        self._wanted = wanted_digest(catalog, expected_units, self._rules)
        if not self._succession.wanted_the_same(self._wanted):
            self._need_plan("the fleet file changed")
            self._fleet.forgive(catalog.changed_since(before))

    def heartbeat(self, report: UnitReport, now_s: float) -> Lease:
        registry = self._fleet.registry
        before = registry.hear(report, now_s)
        if before is None:
            self._welcome(report, now_s)
        elif before.report.is_leaving != report.is_leaving:
            self._migration.leave_out(report.unit_id)
            self._need_plan(f"unit {report.unit_id} leaves: {report.failure or 'it was asked to'}")
        elif before.capacity != registry.capacity_of(report.unit_id):
            self._need_plan(f"unit {report.unit_id} offers something else now")
        if report.wants_to_leave and not (before is not None and before.report.wants_to_leave):
            self._need_plan(f"unit {report.unit_id} was told to leave")
        self._fleet.learn(report, self._costs.host_s_of(report), now_s)
        self._tick(now_s, is_news=before is None or before.report.models != report.models)
        if report.is_leaving and (lease := self._leases.current(report.unit_id)) is not None:
            return lease  # it keeps that to the end
        way, used_s = self._migration, self._scale_to_zero.last_used_s
        asleep = sleepers_of(report, way.plan, way.goal, self._catalog, used_s)
        placements = way.plan.models_of(report.unit_id)
        wanted = tuple(assignments(placements, self._catalog, self._asleep, self._popularity.demand))
        rights = RolloutRights(may_change=self._is_settled, may_interrupt=not self._is_plan_due)
        models = self._rollout.in_turn(report, wanted, self._catalog, way, rights, now_s)
        told = registry.pool_blocks(report.unit_id), self._turns.finish_s(report, self._catalog.place_of)
        return self._leases.renew(report, models, self._catalog.policy, asleep, *told)

    def hear_demand(self, report: DemandReport, now_s: float) -> None:
        """Takes in what a gateway has been asked for; it comes with each of its questions for the view."""
        self._popularity.hear(report, now_s)
        self._tick(now_s, is_news=any(m.waiting or m.held for m in report.models if m.model in self._asleep))

    def hear_waiting(self, gateway_id: str, now_s: float) -> None:
        """A gateway waits for news, and has itself none to tell."""
        self._popularity.hear_waiting(gateway_id, now_s)
        self._tick(now_s)

    def view_version(self, now_s: float) -> tuple[int, ...] | None:
        """Returns the version of FleetNews with the view of now; None while a fresh control loop may not have heard of
        all units.
        """
        registry = self._fleet.registry
        if not registry.is_complete() and now_s - self._started_s < self._timing.warm_up_s:
            return None
        return self._catalog_version, registry.num_changes, self._popularity.num_gateways(now_s)

    def fleet_view(self, now_s: float) -> FleetView | None:
        """None while a fresh control loop may not have heard of all units."""
        self._tick(now_s)
        if self.view_version(now_s) is None:
            return None
        return FleetView(
            models=model_cards(self._model_needs(), now_s),
            units=tuple(UnitView(report=u.report, age_s=max(0.0, now_s - u.heard_s)) for u in self._fleet.registry),
            stream_token=self._stream_token,
            num_gateways=self._popularity.num_gateways(now_s),
        )

    def status(self, now_s: float) -> FleetStatus:
        self._tick(now_s)
        return FleetStatus(
            models=model_states(self._model_needs(), self._leases, self._asleep, now_s),
            units=unit_states(self._fleet, now_s),
            policy=self._catalog.policy,
            plan=self._migration.plan,
            goal=self._migration.goal,
            decisions=self._history.told(now_s),
            cordons=self._fleet.cordons.entries,
            look=None if self._requests is None else self._requests.last_look,
            pools=self.scaling.states(),
        )

    def is_settled(self, unit_id: str, now_s: float) -> bool:
        """Says whether nothing is to change on a unit: one that came, or one that was told to leave."""
        goal, is_due = self._migration.goal, self._is_plan_due
        return is_settled(unit_id, self._fleet.at(now_s), goal, is_plan_due=is_due, now_s=now_s)

    @property
    def cordons(self) -> Cordons:
        return self._fleet.cordons

    def set_cordons(self, cordons: Cordons, why: str) -> None:
        self._fleet.cordons = cordons
        self._need_plan(why)

    def set_going_nodes(self, nodes: frozenset[str]) -> None:
        """Nodes that Ray is about to take away: their units are drained."""
        if nodes != self._fleet.going_nodes:
            self._need_plan(f"Ray drains {len(nodes)} of its nodes")
        self._fleet.set_going_nodes(nodes)

    def trial_task(self, cordon: Cordon | None, now_s: float) -> PlanTask:
        """Returns what the rest of the fleet would have to be planned for with the cordon in force; None: all of it."""
        with self._fleet.as_if(cordon):
            return self._task(now_s)

    def homeless_after(self, cordon: Cordon, found: Plan) -> Mapping[str, str]:
        """Returns which models would have no replica after a drain if `found` were adopted for its task, and why."""
        return self._fleet.homeless_after(cordon, self._migration.goal, found)

    def explain(self, model: str, now_s: float) -> Explanation:
        """Explains the plan that the control loop goes for, with the demand of now; for a model that is asleep, what
        its place would be. Raises ModelUnknown.
        """
        self._tick(now_s)
        needs, model = self._needs(now_s), self._catalog.place_of(model)
        sleeper = self._catalog.get(model) if model in self._asleep else None
        asleep = None if sleeper is None else self._model_needs().placement(sleeper, now_s)
        told = explain_also(asleep, model, needs, self._migration.planned_goal(needs), self._costs.estimator)
        return replace(told, forecast=self.scaling.forecasts.expected(model, now_s, self.scaling.lead_s))

    def _need_plan(self, why: str | None) -> None:
        self._why = self._why or why

    # ---- units that come and go ----

    def _welcome(self, report: UnitReport, now_s: float) -> None:
        replaced = self._fleet.make_room(report, now_s)
        if replaced is not None:
            self._lose(replaced, now_s)
        self._fleet.join(report, now_s)
        if report.is_leaving or not self._adopt(report, now_s):
            self._need_plan(f"unit {report.unit_id} joined")
        self._history.unit_joined(now_s, report)

    def _adopt(self, report: UnitReport, now_s: float) -> bool:
        """What a unit serves when it is first heard of stays there: this control loop restarted, the unit did not. True
        if what it shall serve is known from before.
        """
        adopted = held_by(report, self._catalog)
        led = self._succession.plans_of(adopted)
        in_force, goal = led or (adopted, adopted)
        self._migration.adopt_unit(adopted, in_force, goal, now_s)
        for placed in adopted.models if led is None else ():
            self._scale_to_zero.keep(placed.model, now_s)
        return led is not None

    def _lose(self, lost: Lost, now_s: float) -> None:
        unit_id = lost.report.unit_id
        self._migration.forget(unit_id)
        self._leases.forget(unit_id)
        for spent in self._fleet.leave(lost, now_s):
            self._history.note(now_s, "out", spent)
        self._need_plan(f"unit {unit_id} is gone" + ("" if lost.died else ", as it was asked to"))
        self._history.unit_gone(now_s, lost.report, died=lost.died)

    # ---- what is due ----

    def _tick(self, now_s: float, *, is_news: bool = False) -> None:
        is_news |= self._hear_planner(now_s)
        is_due = is_news or self._why is not None
        if now_s - self._ticked_s < _TICK_S and (not is_due or len(self._fleet.registry) >= _LARGE_FLEET):
            return
        self._ticked_s = now_s
        for lost in self._fleet.drop_silent(now_s):
            self._lose(lost, now_s)
        if self._fleet.any_back(now_s):
            self._need_plan("what was taken out has its next chance")
        news = self._popularity.news(now_s) or self.scaling.alarm(lambda: self._model_needs().asked(now_s), now_s)
        self._note_sleep(now_s)
        if self._requests is None or not self._may_plan(now_s):
            return
        self._migration.take_back_loads(now_s)
        self._need_plan(self._rollout.look(self._catalog, self._migration, now_s))
        self._need_plan(self.scaling.settle(self._migration.goal, self._catalog.placed, now_s))
        self._need_plan(self._turns.look(self._model_needs(), self._migration.transition, self._rules, now_s))
        if self._why is not None:
            self._ask_for_plan(self._requests, self._why, now_s)
        elif news is not None or now_s - self._looked_s >= self._rules.replan_every_s:
            self._look_at_demand(self._requests, news or "demand", now_s)
        self._hear_planner(now_s)
        self._advance(now_s)

    def _may_plan(self, now_s: float) -> bool:
        """Only the first plan waits: later, a unit that is missing is a unit that was lost."""
        if not self._is_settled:
            self._is_settled = self._fleet.registry.is_complete() or now_s - self._started_s >= self._timing.settle_s
            if self._is_settled and (gone := self._succession.given_up()):
                self._fleet.put_aside_cordons(gone, now_s)
                self._need_plan(f"{', '.join(gone)} did not come back")
        return self._is_settled

    def _note_sleep(self, now_s: float) -> None:
        self._scale_to_zero.keep_busy((u.report for u in self._fleet.registry), now_s)
        asleep = self._scale_to_zero.asleep(self._catalog, now_s) - self._foreseen
        changed = sorted(filter(self._catalog.places, asleep ^ self._asleep))  # adapters come and go with leases
        if woken := [model for model in changed if model in self._asleep]:
            why = "requests are forecast" if self._foreseen.issuperset(woken) else "somebody asks"
            self._need_plan(f"{why} for {', '.join(woken)}")
        if fallen := [model for model in changed if model in asleep]:
            self._need_plan(f"nobody asks for {', '.join(fallen)}")
        self._asleep = asleep

    # ---- plans ----

    def _ask_for_plan(self, requests: PlanRequests, why: str, now_s: float) -> None:
        if requests.may_ask(now_s):
            self._why, task = None, self._task(now_s)
            requests.ask(replace(task, needs=self._turns.applied_to(task.needs)), why, now_s)

    def _task(self, now_s: float) -> PlanTask:
        known = self._model_needs()
        known.settle(self._rules, self._costs.estimator, now_s)
        goal = self._migration.planned_goal(needs := known.needs(self._asleep, self._rules, now_s))
        current = None if self._rules.replan == "scratch" else goal
        self.scaling.forecasts.note(known.counted(), now_s)
        expected = self.scaling.expected((m.model for m in needs.models), now_s)
        size = self.scaling.question(needs.models, known.asked(now_s), expected, now_s)
        needs = replace(needs, models=at_least(needs.models, expected))  # so that plans load for it before it comes
        return PlanTask(needs=needs, current=current, goal=goal, size=size)

    def _look_at_demand(self, requests: PlanRequests, why: str, now_s: float) -> None:
        self._looked_s = now_s
        self._foreseen = self.scaling.foreseen(self._catalog.placed, now_s)
        heard_s = self._popularity.heard_s
        is_stale = heard_s is None or now_s - heard_s > self._rules.stale_s
        task = self._task(now_s)
        is_due = task.size is not None or self._may_follow(task)
        if is_due and not (is_stale or self._fleet.registry.is_blind()):
            requests.look(task, why, now_s)

    def _may_follow(self, task: PlanTask) -> bool:
        way = self._migration
        return not way.is_busy and bool(self._rules.replan != "off" or task.needs.homeless(way.goal))

    def _hear_planner(self, now_s: float) -> bool:
        """True if it had a plan. What was found for demand is not looked at where a plan is due for another reason."""
        answered = None if self._requests is None else self._requests.answered()
        if answered is None:
            return False
        asked, answer = answered
        self._fleet.registry.size_pools(answer.pool_blocks)
        if answer.size is not None:
            self.scaling.hear(answer.size, now_s)
        if not asked.is_look:
            self._adopt_plan(answer.solution, asked, asked.why, now_s)
        elif self._why is None and self._may_follow(asked.task):
            self._judge(asked, answer, now_s)
        return True

    def _judge(self, asked: Asked, answer: PlanAnswer, now_s: float) -> None:
        verdict = verdict_on(asked, answer, self._migration.planned_goal(asked.task.needs), self._rules)
        if verdict is not None and verdict.kind == "plan":
            self._adopt_plan(answer.solution, asked, verdict.reason, now_s)
        elif verdict is not None:
            self._history.note(now_s, verdict.kind, verdict.reason)

    def _adopt_plan(self, solution: Solution, asked: Asked, why: str, now_s: float) -> None:
        if self._migration.set_out(self._rollout.without_wishes(solution), self._catalog, asked.task.needs.unknown):
            self._history.note(now_s, "plan", why + self._turns.give_way(solution.put_to_sleep, now_s))

    def _advance(self, now_s: float) -> None:
        for unit_id, model in self._migration.give_up_failed(now_s):
            self._need_plan(f"model {model} does not load on {unit_id} and stays where it is")
        steps = self._migration.advance(lambda: self._needs(now_s), now_s)
        if steps is None:
            self._need_plan("the plan no longer fits")
        elif steps:
            self._history.moved(now_s, steps, tuple(in_words(s) for s in steps))

    def _model_needs(self) -> ModelNeeds:
        told = (self._fleet, self._catalog, self._popularity, self._scale_to_zero)
        return ModelNeeds(*told, self._migration.plan, self._migration.goal, self._rollout.doubled)

    def _needs(self, now_s: float) -> Needs:
        return self._model_needs().needs(self._asleep, self._rules, now_s)
