"""Asks a solver what the fleet should hold, and decides who gives way where not all have room."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from deploy.control.plan_choice import Needs
from placement.estimation.refusal import fits_alone
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
    plan = solver.solve(needs.units, needs.models, current)
    if not needs.homeless(plan):
        return Solution(plan=plan)
    reasons, late = plan.unplaced, _beyond_room(needs, current)
    kept, gone = without(needs, late), list[str]()
    if late:
        plan = solver.solve(kept.units, kept.models, current)
    for (
        guest
    ) in needs.guests:  # to those that always have a place, and who has slept for long to guests that lost theirs
        others = needs.latecomers if guest in needs.sleepers else (*needs.latecomers, *needs.guests)
        if not kept.homeless(plan, but=others):
            break
        gone.append(guest)
        kept = without(kept, {guest})
        plan = solver.solve(kept.units, kept.models, current)
    return _told(plan, needs, reasons, gone)


def _told(plan: Plan, needs: Needs, reasons: Mapping[str, str], gone: Sequence[str]) -> Solution:
    """Models that will have their turns lack nothing."""
    turns = {*needs.latecomers, *needs.guests}
    lacking = [m.model for m in needs.models if m.model not in turns or not fits_alone(m, needs.units)]
    told = {m: why for m, why in {**reasons, **plan.unplaced}.items() if m in lacking}
    return Solution(plan=replace(plan, unplaced=told), put_to_sleep=tuple(gone))


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
                return _told(plan, needs, {} if current is None else current.unplaced, gone)
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
        self._held = {
            u.unit_id: set() if current is None else {p.model for p in current.models_of(u.unit_id)}
            for u in needs.units
        }

    def take(self, model: str, rank: Mapping[str, int]) -> tuple[str, ...] | None:
        """Puts a model where those of the lowest rank leave for it, and returns who leaves."""
        ways = ((unit_id, self._leaving(unit_id, model, rank)) for unit_id in self._held)
        found = [(way, unit_id) for unit_id, way in ways if way is not None]
        if not found:
            return None
        way, home = min(found, key=lambda f: ([rank[m] for m in reversed(f[0])], f[1]))
        for held in self._held.values():
            held.difference_update(way)
        self._held[home].add(model)
        return way

    def _leaving(self, unit_id: str, model: str, rank: Mapping[str, int]) -> tuple[str, ...] | None:
        wanted = {*self._held[unit_id], model}
        may_go = sorted(self._held[unit_id] & rank.keys(), key=rank.__getitem__)
        for number in range(len(may_go) + 1):
            if self._fits(unit_id, frozenset(wanted.difference(may_go[:number]))):
                going = set(may_go[:number])
                for stays in may_go[:number]:  # a large one after small ones may be enough by itself
                    if self._fits(unit_id, frozenset(wanted - going | {stays})):
                        going.discard(stays)
                return tuple(m for m in may_go if m in going)
        return None
