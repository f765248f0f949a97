"""Remembers which asks were tried in vain, and when another try makes sense."""

import math
from collections.abc import Mapping, Set

from router.admission.flow import Standing
from router.request_terms import AdmissionRequest, Priority

_ALL = frozenset(Standing)


class BlockedTurns:
    """An ask that a unit has no room for blocks its model until something changes: smaller ones would take the room for
    ever. One that would wait behind too much on the unit blocks what has no better standing; of what is in time it
    blocks itself only, since a newcomer may be due before it.
    """

    def __init__(self) -> None:
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

    def newcomer(self, request: AdmissionRequest) -> None:
        """One of a higher class is the next, and may find room where the others did not."""
        if request.priority > self._class.get(request.model, Priority.HIGH):
            self.something_has_changed(request.model)

    def standings(self, now_s: float) -> Mapping[str, Set[Standing]]:
        """Returns what need not be looked at, by model, and forgets what may be tried again by now."""
        for model, of_model in list(self._until_s.items()):
            if min(of_model.values(), default=math.inf) <= now_s:
                self._until_s[model] = {standing: s for standing, s in of_model.items() if s > now_s}
        return {model: self._blocked(of_model) for model, of_model in self._until_s.items()}

    def is_blocked(self, request: AdmissionRequest, now_s: float) -> bool:
        """Returns whether this ask, in time, was tried a moment ago."""
        until_s = self._until_s.get(request.model, {}).get(Standing.IN_TIME, -math.inf)
        return until_s > now_s and self._in_time.get(request.model) == request.request_id

    def next_try_s(self, model: str) -> float:
        """Returns when time alone may change something for a model whose every standing has been tried."""
        return min(self._until_s.get(model, {}).values(), default=-math.inf)

    def something_has_changed(self, model: str | None = None) -> None:
        """Everybody of the model, or of all, may be tried again."""
        if model is None:
            self._until_s.clear()
            self._in_time.clear()
            self._class.clear()
        else:
            self._until_s.pop(model, None)
            self._in_time.pop(model, None)
            self._class.pop(model, None)

    def unit_is_free_sooner(self) -> None:
        """Lets those that waited behind others be tried again, and not those without room."""
        self._until_s = {m: of for m, of in self._until_s.items() if math.inf in of.values()}
        self._in_time.clear()

    def _blocked(self, of_model: Mapping[Standing, float]) -> Set[Standing]:
        if of_model.get(Standing.IN_TIME) == math.inf:
            return _ALL
        return frozenset(standing for standing in of_model if standing is not Standing.IN_TIME)
