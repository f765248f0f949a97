"""Asks a solver what the fleet should hold, and decides who gives way where not all have room."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from deploy.control.plan_choice import Needs
from placement.estimation.refusal import fits_alone, refusal
from placement.plan import Plan
from placement.problem import Solver

_MOST_MORE = 4  # of those that leave


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """`put_to_sleep`: models that the plan leaves out, though they could stay if there were room."""

    plan: Plan
    put_to_sleep: tuple[str, ...] = ()


def solve(solver: Solver, needs: Needs, current: Plan | None) -> Solution:
    if (turned := _turned(solver, needs, current)) is not None:
        return turned
    kept = without(needs, _beyond_room(needs, current))
    plan = solver.solve(kept.units, kept.models, current)
    if any(not plan.units_of(guest) for guest in needs.guests):  # of the pool there is not enough for all
        kept = without(needs, set(needs.latecomers))
        plan = solver.solve(kept.units, kept.models, current)
    gone: list[str] = []
    # Who always has a place gets one; a guest that lost its own, that of one that nobody has used for long.
    for guest in needs.guests:
        others = needs.latecomers if guest in needs.sleepers else (*needs.latecomers, *needs.guests)
        if not kept.homeless(plan, but=others):
            break
        gone.append(guest)
        kept = without(kept, {guest})
        plan = solver.solve(kept.units, kept.models, current)
    return _told(plan, needs, gone)


def _told(plan: Plan, needs: Needs, gone: Sequence[str]) -> Solution:
    """Models that will have their turns lack nothing; what no unit could ever hold does, tried or not."""
    turns = {*needs.latecomers, *needs.guests}
    told = {m: why for m, why in plan.unplaced.items() if m not in turns}
    out = [m for m in needs.models if m.model in turns and not plan.units_of(m.model)]
    told |= {m.model: refusal(m, [(u, ()) for u in needs.units]) for m in out if not fits_alone(m, needs.units)}
    return Solution(plan=replace(plan, unplaced=dict(sorted(told.items()))), put_to_sleep=tuple(gone))


def without(needs: Needs, models: Set[str]) -> Needs:
    return replace(needs, models=tuple(m for m in needs.models if m.model not in models))


def _beyond_room(needs: Needs, current: Plan | None) -> frozenset[str]:
    """Returns latecomers that no unit has room for beside what it holds: they would put others out."""
    held = HeldModels(needs, current)
    return frozenset(m for m in needs.latecomers if held.take(m, {}) is None)


def _turned(solver: Solver, needs: Needs, current: Plan | None) -> Solution | None:
    """Gives places to as many of those whose turn it is as the solver finds room for; None: to nobody."""
    waiting = needs.turn.waiting
    while waiting:
        late = frozenset(needs.latecomers).difference(waiting)
        for gone in _ways_to_leave(waiting, needs, current):
            kept = without(needs, late.union(gone))
            plan = solver.solve(kept.units, kept.models, current)
            if not kept.homeless(plan):
                return _told(plan, needs, gone)
        waiting = waiting[: len(waiting) // 2]
    return None


def _ways_to_leave(waiting: Iterable[str], needs: Needs, current: Plan | None) -> Iterator[tuple[str, ...]]:
    """Who makes room by memory may not be enough: each model takes a part of the pool as well."""
    gone = room_made(waiting, needs, current)
    if gone is not None:
        others = [m for m in needs.turn.yielding if m not in gone]
        yield from (gone + tuple(others[:more]) for more in range(min(len(others), _MOST_MORE) + 1))


def room_made(waiting: Iterable[str], needs: Needs, current: Plan | None) -> tuple[str, ...] | None:
    """Returns who of those that may yield leaves, so that one unit after the other has room for one that waits; None
    where that is not enough.
    """
    rank = {model: number for number, model in enumerate(needs.turn.yielding)}
    held, gone = HeldModels(needs, current), list[str]()
    for model in waiting:
        left = held.take(model, rank)
        if left is None:
            return None
        gone += left
    return tuple(gone)


class HeldModels:
    """Keeps what units hold beside their pools, while models come and go."""

    def __init__(self, needs: Needs, current: Plan | None) -> None:
        self._fits = needs.memory_test()
        held = {} if current is None else {u.unit_id: {p.model for p in u.models} for u in current.units}
        self._held = {u.unit_id: held.get(u.unit_id, set()) for u in needs.units}
        self._homes = Counter(m for models in self._held.values() for m in models)
        self._least = {m.model: max(1, m.min_replicas) for m in needs.models}

    def take(self, model: str, rank: Mapping[str, int]) -> tuple[str, ...] | None:
        """Puts a model where those of the lowest rank leave for it, and returns who leaves for good: one of several
        replicas goes first, and is no loss.
        """
        ways = ((unit_id, self._leaving(unit_id, model, rank)) for unit_id in self._held)
        found = [(way, unit_id) for unit_id, way in ways if way is not None]
        if not found:
            return None
        way, home = min(found, key=lambda f: ([self._order(m, rank) for m in reversed(f[0])], f[1]))
        leaving = [m for m in way if not self._is_spare(m)]
        for unit_id, held in self._held.items():
            held.difference_update(way if unit_id == home else leaving)
        self._homes.subtract(way)
        self._held[home].add(model)
        return tuple(leaving)

    def _is_spare(self, model: str) -> bool:
        return self._homes[model] > self._least.get(model, 1)

    def _order(self, model: str, rank: Mapping[str, int]) -> int:
        return -1 if self._is_spare(model) else rank[model]

    def _leaving(self, unit_id: str, model: str, rank: Mapping[str, int]) -> tuple[str, ...] | None:
        wanted = {*self._held[unit_id], model}
        may_go = [m for m in self._held[unit_id] if self._is_spare(m) or m in rank]
        may_go.sort(key=lambda m: (self._order(m, rank), m))
        for number in range(len(may_go) + 1):
            if self._fits(unit_id, frozenset(wanted.difference(may_go[:number]))):
                going = set(may_go[:number])
                for stays in may_go[:number]:  # a large one after small ones may be enough by itself
                    if self._fits(unit_id, frozenset(wanted - going | {stays})):
                        going.discard(stays)
                return tuple(m for m in may_go if m in going)
        return None
