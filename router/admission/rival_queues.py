"""Keeps what waits at a gateway, apart for models that do not compete: what they wait for is not the same room."""

import math
from collections.abc import Iterable, Iterator, Set

from router.admission.blocked_turns import BlockedTurns
from router.admission.fair_queue import FairQueue, PaceOf
from router.admission.flow import Standing, Waiting
from router.admission.service_counters import Turn
from router.request_terms import AdmissionRequest

_LOOK_EVERY_S = 0.1


class RivalQueue:
    """Orders what waits of models that compete for the same units, and tells what of it is worth a try."""

    def __init__(self, models: frozenset[str]) -> None:
        self.models = models
        self.name = min(models)
        self.turns = FairQueue()
        self.tenants_s: dict[str, float] = {}  # those that asked lately, and when
        self._blocked = BlockedTurns()
        self.evicted: list[AdmissionRequest] = []
        self._look_s = -math.inf  # when to look for late asks without a hope

    def __len__(self) -> int:
        return len(self.turns) + len(self.evicted)

    def push(self, request: AdmissionRequest, came_s: float, *, work: float, prefill_s: float, credit: float) -> None:
        """Lets a newcomer wait, as `FairQueue.push`."""
        self._blocked.newcomer(request)
        self.turns.push(request, came_s, work=work, prefill_s=prefill_s, credit=credit)

    def evict(self, request: AdmissionRequest) -> None:
        """Another one takes its place."""
        self.remove(request)
        self.evicted.append(request)

    def remove(self, request: AdmissionRequest) -> None:
        """Takes out one that leaves without a turn. Where it had been tried in vain, others may go."""
        if self.turns.remove(request.request_id) is None:
            self.evicted = [evicted for evicted in self.evicted if evicted.request_id != request.request_id]
        else:
            self._has_left(request)

    def take_evicted(self) -> list[AdmissionRequest]:
        evicted, self.evicted = self.evicted, []
        return evicted

    def take_expired(self, now_s: float) -> list[AdmissionRequest]:
        """Removes and returns asks that have waited until their deadline."""
        expired = self.turns.expired(now_s)
        for request in expired:
            self._has_left(request)
        return expired

    def take_hopeless(self, now_s: float, pace_of: PaceOf) -> list[AdmissionRequest]:
        """Removes and returns late asks whose turn is not expected within their patience. Looks ten times a second."""
        if now_s < self._look_s:
            return []
        self._look_s = now_s + _LOOK_EVERY_S
        hopeless = self.turns.hopeless(now_s, pace_of)
        for request in hopeless:
            self._has_left(request)
        return hopeless

    def worth_a_try(self, now_s: float, pace_of: PaceOf) -> Iterator[Turn]:
        """Yields asks in turn. Each is to be served or blocked before the next one is asked for."""
        models = self._blocked.awake(now_s)
        for turn in self.turns.turns(models, now_s, pace_of, but=self._blocked.standings):
            if turn.standing is not Standing.IN_TIME or not self._blocked.is_blocked(turn.waiting.request, now_s):
                yield turn
        for model in models:
            if self.turns.size(model):
                self._blocked.sleep(model)

    def block(self, turn: Turn, until_s: float) -> None:
        """It was tried in vain; `until_s` as of `BlockedTurns.block`."""
        self._blocked.block(turn.waiting.request, turn.standing, until_s)

    def serve(self, waiting: Waiting) -> None:
        request = waiting.request
        self.turns.serve(request.request_id)
        if not self.turns.size(request.model):
            self._blocked.nothing_waits(request.model)

    def has_changed(self, model: str) -> None:
        """Room has come free that only this model can have."""
        self._blocked.something_has_changed(model)

    def unit_is_free_sooner(self, model: str) -> None:
        """A unit of this model is."""
        self._blocked.unit_is_free_sooner(model)

    def units_are_back(self) -> None:
        """Everybody may be tried again."""
        self._blocked.all_has_changed()

    def on_view(self, *, asked_since_s: float) -> None:
        """Everybody may be tried again. Tenants that asked before then are forgotten."""
        self._blocked.all_has_changed()
        self.tenants_s = {t: asked_s for t, asked_s in self.tenants_s.items() if asked_s > asked_since_s}

    def next_pump_s(self, *, sheds: bool) -> float | None:
        """Returns when waiting alone may change something; None while nothing waits. `sheds`: late asks may be known to
        be without a hope.
        """
        if self.evicted:
            return -math.inf
        deadline_s = self.turns.next_deadline_s()
        if deadline_s is None:
            return None
        return min(deadline_s, self._look_s if sheds else math.inf, self._blocked.next_try_s())

    def take_over(self, model: str, other: "RivalQueue") -> None:
        """Goes on with a model that competes with others now."""
        self.turns.take_over(model, other.turns)
        self.evicted += [request for request in other.evicted if request.model == model]
        for tenant, asked_s in other.tenants_s.items():
            self.tenants_s[tenant] = max(asked_s, self.tenants_s.get(tenant, asked_s))
        if self.turns.size(model):
            self._blocked.enter(model)

    def _has_left(self, request: AdmissionRequest) -> None:
        if self.turns.size(request.model):
            self._blocked.something_has_changed(request.model)
        else:
            self._blocked.nothing_waits(request.model)


class RivalQueues:
    """The queue of every model, `by_model` of those that are known. One that no unit has competes with nobody."""

    def __init__(self) -> None:
        self.by_model: dict[str, RivalQueue] = {}

    def __len__(self) -> int:
        """Counts what waits."""
        return sum(len(queue.turns) for queue in self._all())

    def of(self, model: str) -> RivalQueue:
        queue = self.by_model.get(model)
        if queue is None:
            queue = self.by_model[model] = RivalQueue(frozenset((model,)))
        return queue

    def size(self, model: str) -> int:
        queue = self.by_model.get(model)
        return 0 if queue is None else queue.turns.size(model)

    def in_use(self) -> list[RivalQueue]:
        """Returns those with anything waiting."""
        return [queue for queue in self._all() if len(queue)]

    def on_view(self, rivals: Iterable[frozenset[str]], *, asked_since_s: float) -> None:
        """Units came, went or told their load. `rivals` are the models that compete now, in groups."""
        self._regroup([*rivals])
        for queue in self._all():
            queue.on_view(asked_since_s=asked_since_s)

    def units_are_back(self) -> None:
        for queue in self._all():
            queue.units_are_back()

    def keep_models(self, models: Set[str]) -> None:
        """Forgets models that have left the fleet, once nothing of them waits."""
        kept = frozenset(models)
        for queue in self._all():
            queue.turns.keep_models(kept)
        gone = [m for m, q in self.by_model.items() if m not in kept and len(q.models) == 1 and not len(q)]
        for model in gone:
            del self.by_model[model]

    def _all(self) -> list[RivalQueue]:
        return list({id(queue): queue for queue in self.by_model.values()}.values())

    def _regroup(self, rivals: list[frozenset[str]]) -> None:
        grouped = {model for group in rivals for model in group}
        alone = [frozenset((model,)) for model in self.by_model if model not in grouped]
        for group in (*rivals, *alone):
            before = {model: self.by_model[model] for model in sorted(group) if model in self.by_model}
            if len(before) == len(group) and all(queue.models == group for queue in before.values()):
                continue
            queue = RivalQueue(group)
            for model, old in before.items():
                queue.take_over(model, old)
            for model in group:
                self.by_model[model] = queue


def rival_models(units: Iterable[frozenset[str]]) -> list[frozenset[str]]:
    """Returns the models of `units` in groups that share none; `units` holds the models of each.

    >>> [sorted(group) for group in rival_models([frozenset("ab"), frozenset("cd"), frozenset("bx"), frozenset("c")])]
    [['a', 'b', 'x'], ['c', 'd']]
    """
    group_of: dict[str, set[str]] = {}
    for models in set(units):
        joined = set(models)
        for model in models:
            joined |= group_of.get(model, frozenset())
        for model in joined:
            group_of[model] = joined
    groups = {min(group): frozenset(group) for group in group_of.values()}
    return [groups[first] for first in sorted(groups)]
