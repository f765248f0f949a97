"""Keeps what the control loop has asked its planner for: one task at a time."""

from dataclasses import dataclass

from deploy.control.plan_worth import PlanLook
from deploy.control.planner import PlanAnswer, Planner, PlanTask

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
