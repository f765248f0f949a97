"""Judges a plan that was found for the demand of now: whether the fleet shall move for it."""

from dataclasses import dataclass

from deploy.control.control_rules import ControlRules
from deploy.control.plan_choice import quotas_shifted, same_places
from deploy.control.plan_requests import Asked
from deploy.control.plan_worth import gain_in_words, is_worth_moving, move_price
from deploy.control.planner import PlanAnswer
from placement.plan import Plan
from router.telemetry.fleet_event import EventKind


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
