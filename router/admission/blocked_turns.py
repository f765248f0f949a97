"""Remembers which asks were tried in vain, and when another try makes sense."""

import heapq
import math
from collections.abc import Sequence, Set

from router.admission.flow import Standing
from router.request_terms import AdmissionRequest, Priority

_NONE: Set[Standing] = frozenset()
_ALL = frozenset(Standing)


class BlockedTurns:
    """An ask that a unit has no room for blocks its model until something changes: smaller ones would take the room for
    ever. One that would wait behind too much on the unit blocks what has no better standing; of what is in time it
    blocks itself only, since a newcomer may be due before it.

    A model of which nothing can go now sleeps, and costs nothing until it is woken: by a newcomer, by one that leaves,
    by what happens on its units, or by the time.
    """

    def __init__(self) -> None:
        self._awake: dict[str, None] = {}
        self._asleep_until_s: dict[str, float] = {}
        self._alarms: list[tuple[float, str]] = []  # may hold what was woken before
        self._until_s: dict[str, dict[Standing, float]] = {}  # by model
        self._in_time: dict[str, str] = {}  # by model, the request that is in time and blocked
        self._class: dict[str, Priority] = {}  # by model, of what was blocked last

    def block(self, request: AdmissionRequest, standing: Standing, until_s: float) -> None:
        """`until_s`: infinite where time alone changes nothing."""
        model = request.model
        self._class[model] = request.priority
        if until_s == math.inf:
            self._until_s[model] = dict.fromkeys(Standing, math.inf)
            self._in_time.pop(model, None)
            return
        self._until_s.setdefault(model, {})[standing] = until_s
        if standing is Standing.IN_TIME:
            self._in_time[model] = request.request_id

    def awake(self, now_s: float) -> Sequence[str]:
        """Returns the models that have something to try."""
        while self._alarms and self._alarms[0][0] <= now_s:
            at_s, model = heapq.heappop(self._alarms)
            if self._asleep_until_s.get(model) == at_s:
                self._wake(model)
        return list(self._awake)

    def sleep(self, model: str) -> None:
        """Every standing has been tried."""
        until_s = min(self._until_s.get(model, {}).values(), default=math.inf)
        self._awake.pop(model, None)
        self._asleep_until_s[model] = until_s
        if until_s < math.inf:
            heapq.heappush(self._alarms, (until_s, model))

    def next_try_s(self) -> float:
        """Returns when time alone may change something; infinite if it does not."""
        if self._awake:
            return -math.inf
        while self._alarms and self._asleep_until_s.get(self._alarms[0][1]) != self._alarms[0][0]:
            heapq.heappop(self._alarms)
        return self._alarms[0][0] if self._alarms else math.inf

    def standings(self, model: str, now_s: float) -> Set[Standing]:
        """Returns what need not be looked at, and forgets what may be tried again by now."""
        of_model = self._until_s.get(model)
        if not of_model:
            return _NONE
        if min(of_model.values()) <= now_s:
            of_model = self._until_s[model] = {standing: s for standing, s in of_model.items() if s > now_s}
        if of_model.get(Standing.IN_TIME) == math.inf:
            return _ALL
        return frozenset(standing for standing in of_model if standing is not Standing.IN_TIME)

    def is_blocked(self, request: AdmissionRequest, now_s: float) -> bool:
        """Returns whether this ask, in time, was tried a moment ago."""
        until_s = self._until_s.get(request.model, {}).get(Standing.IN_TIME, -math.inf)
        return until_s > now_s and self._in_time.get(request.model) == request.request_id

    def newcomer(self, request: AdmissionRequest) -> None:
        """One of a higher class is the next, and may find room where the others did not."""
        model = request.model
        self.enter(model)
        if request.priority > self._class.get(model, Priority.HIGH):
            self.something_has_changed(model)

    def enter(self, model: str) -> None:
        """Something of it is to be tried."""
        self._asleep_until_s.pop(model, None)
        self._awake[model] = None

    def nothing_waits(self, model: str) -> None:
        """Forgets the model: an ask that could not go stands in nobody's way once it has left."""
        self.something_has_changed(model)
        self._awake.pop(model, None)

    def something_has_changed(self, model: str) -> None:
        """Everybody of the model may be tried again."""
        self._until_s.pop(model, None)
        self._in_time.pop(model, None)
        self._class.pop(model, None)
        self._wake(model)

    def all_has_changed(self) -> None:
        """Everybody may be tried again."""
        self._until_s.clear()
        self._in_time.clear()
        self._class.clear()
        self._alarms.clear()
        for model in list(self._asleep_until_s):
            self._wake(model)

    def unit_is_free_sooner(self, model: str) -> None:
        """Lets what waited behind others be tried again, and not what has no room."""
        if math.inf not in self._until_s.get(model, {}).values():
            self._until_s.pop(model, None)
            self._in_time.pop(model, None)
            self._wake(model)

    def _wake(self, model: str) -> None:
        if self._asleep_until_s.pop(model, None) is not None:
            self._awake[model] = None
