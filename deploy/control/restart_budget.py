"""A restart budget: what keeps dying is taken out for a while, be it the place of a unit or a model."""

from collections import deque
from collections.abc import Iterable

from deploy.control.control_rules import ControlRules
from deploy.control.control_state import KeptBudget


class RestartBudget:
    def __init__(self, rules: ControlRules) -> None:
        self._rules = rules
        self._deaths: dict[str, deque[float]] = {}
        self._out_until_s: dict[str, float] = {}

    def note(self, key: str, now_s: float) -> bool:
        """A death; True if it used the budget up."""
        since_s = now_s - self._rules.deaths_window_s
        self._deaths = {k: deaths for k, deaths in self._deaths.items() if deaths[-1] >= since_s}  # nodes never end
        deaths = self._deaths.setdefault(key, deque())
        deaths.append(now_s)
        while deaths[0] < since_s:
            deaths.popleft()
        if len(deaths) < self._rules.max_deaths:
            return False
        self.take_out(key, now_s)
        return True

    def take_out(self, key: str, now_s: float) -> None:
        self._deaths.pop(key, None)
        self._out_until_s[key] = now_s + self._rules.out_s

    def out_for_s(self, key: str, now_s: float) -> float:
        """0 when it may be used."""
        left_s = self._out_until_s.get(key, now_s) - now_s
        if left_s <= 0:
            self._out_until_s.pop(key, None)
        return max(0.0, left_s)

    def kept(self) -> tuple[KeptBudget, ...]:
        keys = sorted({*self._deaths, *self._out_until_s})
        return tuple(
            KeptBudget(key=k, deaths_s=tuple(self._deaths.get(k, ())), out_until_s=self._out_until_s.get(k, 0.0))
            for k in keys
        )

    def restore(self, budgets: Iterable[KeptBudget]) -> None:
        for budget in budgets:
            if budget.deaths_s:
                self._deaths[budget.key] = deque(budget.deaths_s)
            if budget.out_until_s:
                self._out_until_s[budget.key] = budget.out_until_s

    def any_back(self, now_s: float) -> bool:
        """Returns whether somebody's time is over since this was asked last."""
        over = [key for key, until_s in self._out_until_s.items() if until_s <= now_s]
        for key in over:
            del self._out_until_s[key]
        return bool(over)
