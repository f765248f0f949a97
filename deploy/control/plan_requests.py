"""Keeps what the control loop has asked its planner for, one task at a time, and judges what it answers for the demand
of now.
"""

from dataclasses import dataclass

from deploy.control.control_rules import ControlRules
from deploy.control.plan_choice import quotas_shifted, same_places
from deploy.control.plan_worth import PlanLook, gain_in_words, is_worth_moving, move_price
from deploy.control.planner import PlanAnswer, Planner, PlanTask
from placement.plan import Plan
from router.telemetry.fleet_event import EventKind

_MOST_REPLACED_S = 3.0  # units that join one after another do not put the plan off for ever
_GIVEN_UP_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """`is_look`: the fleet could stay as it is; its demand is looked at. `since_s`: since a plan is waited for."""

    task: PlanTask
    why: str
    is_look: bool
    since_s: float


class PlanRequests:
    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._asked: Asked | None = None
        self.last_look: PlanLook | None = None

    def led_by(self, planner: Planner) -> "PlanRequests":
        """The same requests, of another planner: what was asked of the first is not answered."""
        return self if planner is self._planner else PlanRequests(planner)

    def may_ask(self, now_s: float) -> bool:
        """The world changed: what is worked out for another one is given up, but not again and again."""
        if self._asked is None or self._asked.is_look:
            return True
        return not _MOST_REPLACED_S <= now_s - self._asked.since_s < _GIVEN_UP_S

    @property
    def is_awaited(self) -> bool:
        """A plan is: not just a look at demand."""
        return self._asked is not None and not self._asked.is_look

    def ask(self, task: PlanTask, why: str, now_s: float) -> None:
        waited = self._asked
        is_same_wait = waited is not None and not waited.is_look and now_s - waited.since_s < _GIVEN_UP_S
        since_s = waited.since_s if is_same_wait and waited is not None else now_s
        self._put(Asked(task=task, why=why, is_look=False, since_s=since_s))

    def look(self, task: PlanTask, why: str, now_s: float) -> None:
        """Nothing is asked while something is."""
        if self._asked is None:
            self._put(Asked(task=task, why=why, is_look=True, since_s=now_s))

    def answered(self) -> tuple[Asked, PlanAnswer] | None:
        answer = None if self._asked is None else self._planner.answer()
        if answer is None or self._asked is None:
            return None
        asked, self._asked = self._asked, None
        self.last_look = answer.as_look(asked.why)
        return asked, answer

    def _put(self, asked: Asked) -> None:
        self._asked = asked
        self._planner.ask(asked.task)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanVerdict:
    """`kind` is that of the decision to note: a plan is adopted, kept or a shadow."""

    kind: EventKind
    reason: str


def verdict_on(asked: Asked, answer: PlanAnswer, goal: Plan, rules: ControlRules) -> PlanVerdict | None:
    """None: it is the plan that the fleet has."""
    needs, solution, why = asked.task.needs, answer.solution, asked.why
    if same_places(goal, solution.plan):
        is_shifted = quotas_shifted(goal, solution.plan) and rules.replan != "shadow"
        return PlanVerdict(kind=EventKind.PLAN, reason=f"{why}: quotas") if is_shifted else None
    gone = solution.put_to_sleep
    if needs.homeless(solution.plan, but=gone) < needs.homeless(goal, but=gone):
        return PlanVerdict(kind=EventKind.PLAN, reason="there is room for a model that had none")
    told = f"{why}: {gain_in_words(answer.now, answer.then)}"
    if rules.replan == "shadow":
        return PlanVerdict(kind=EventKind.SHADOW, reason=told)
    price = move_price(needs, goal, solution.plan)
    if rules.replan == "auto" and not is_worth_moving(answer.now, answer.then, price, rules):
        return PlanVerdict(kind=EventKind.KEPT, reason=f"{told}, which is not worth a move")
    return PlanVerdict(kind=EventKind.PLAN, reason=told)
