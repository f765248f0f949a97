"""A restart budget: what keeps dying is taken out for a while, be it the place of a unit or a model. A restarted unit
has a new id and takes the place of the one before.
"""

from collections import deque
from collections.abc import Iterable, Mapping

from deploy.control.control_rules import ControlRules
from deploy.control.control_state import KeptBudget
from pdmux_actor.lease import UnitReport

_LEFT_NODES = 1000


class UnitSlots:
    """A place is pool/node/number. Of several empty ones on a node the newest goes first."""

    def __init__(self) -> None:
        self._place_of: dict[str, str] = {}
        self._empty: dict[tuple[str, str], list[str]] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self._before: dict[str, str] = {}

    def join(self, report: UnitReport) -> None:
        where = (report.pool, report.node)
        place = self._before.pop(report.unit_id, None)
        if place is None:
            self._place_of[report.unit_id] = self._free(*where)
            return
        other = next((unit_id for unit_id, of_unit in self._place_of.items() if of_unit == place), None)
        self._place_of[report.unit_id] = place
        if other is not None:  # that one came first, and this one might have died
            self._place_of[other] = self._free(*where)
        elif place in (empty := self._empty.get(where, [])):
            empty.remove(place)

    def _free(self, pool: str, node: str) -> str:
        """Returns a place that was left; or that of a unit which the control loop before led and this one has not heard
        of: it may have died meanwhile, and the one that comes be its successor; or a new one.
        """
        if empty := self._empty.get((pool, node)):
            return empty.pop()
        taken = set(self._place_of.values())
        for place in self._before.values():
            if place not in taken and place.rsplit("/", 1)[0] == f"{pool}/{node}":
                return place
        number = self._counts.get((pool, node), 0)
        self._counts[pool, node] = number + 1
        return f"{pool}/{node}/{number}"

    def leave(self, report: UnitReport) -> str:
        place, where = self._place_of.pop(report.unit_id), (report.pool, report.node)
        self._empty[where] = [*self._empty.pop(where, []), place]
        self._forget_nodes()
        return place

    def _forget_nodes(self) -> None:
        """Of nodes without units only those that were left last may come back: in a cloud there is no end of them."""
        here = {place.rsplit("/", 1)[0] for place in (*self._place_of.values(), *self._before.values())}
        for where in [w for w in self._empty if "/".join(w) not in here][:-_LEFT_NODES]:
            del self._empty[where], self._counts[where]

    def kept(self) -> Mapping[str, str]:
        """Returns by unit its place."""
        return dict(sorted(self._place_of.items()))

    def restore(self, place_of: Mapping[str, str]) -> None:
        """Units that join later and had a place before have it again."""
        self._before = dict(place_of)
        for place in place_of.values():
            pool, node, number = place.rsplit("/", 2)
            self._counts[pool, node] = max(self._counts.get((pool, node), 0), int(number) + 1)

    def of(self, unit_id: str) -> str:
        return self._place_of[unit_id]


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

    def forgive(self, key: str) -> None:
        """Begins anew with it."""
        self._deaths.pop(key, None)
        self._out_until_s.pop(key, None)

    def out_for_s(self, key: str, now_s: float) -> float:
        """0 when it may be used."""
        return max(0.0, self._out_until_s.get(key, now_s) - now_s)

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
