"""Lets models take turns where units hold fewer than are asked for: who waits for a place, and who may give one up."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from deploy.control.change_times import ChangeTimes
from deploy.control.control_rules import ControlRules
from deploy.control.flight_recorder import FlightRecorder
from deploy.control.model_needs import ModelNeeds
from deploy.control.plan_choice import Needs, PlaceTurn
from deploy.control.transition import Transition
from pdmux_actor.lease import ModelPhase, UnitReport

_IDLE_S = 2.0  # a client that sends one request after the other pauses for less
_LEAST_TURN_S = 1.0
_FINISH_SHARE = 0.7  # of what the load leaves of hold_s
_TRIED_AGAIN_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """A model that has a place for as long as it is used, and is ready there, or `fails` to load, or is on its way `in
    vain` as long as others can use the place. `placed_s`: since when it has it. `used_in_earnest_s`: what requests of
    low priority do is left out while they are the only ones.
    """

    model: str
    placed_s: float = float("-inf")
    last_used_s: float = float("-inf")
    used_in_earnest_s: float = float("-inf")
    rate_per_s: float = 0.0
    fails: bool = False
    in_vain: bool = False


class ModelTurns:
    """Gateways refuse what has waited for `hold_s`: all that are asked for are to come to a place within it, however
    seldom they are asked for. Who is not used now but by requests of low priority, or does not load, gives way at
    once, others after a turn: who is asked for least, or once somebody has waited for half of `hold_s`, who has had
    its place longest. Streams that run then may go on until the first that waits has waited for most of `hold_s`, at
    least for another turn; what is left of them goes on when their model's turn comes again. Requests of low priority
    take no turns: they wait for a place that nobody has used for long.
    """

    def __init__(self, recorder: FlightRecorder) -> None:
        self._waits_since_s: dict[str, float] = {}
        self._ready_since_s: dict[str, float] = {}
        self._tried_s = float("-inf")
        self._given_s = 0.0
        self._finish_s: dict[str, float] = {}
        self._failed: dict[str, str] = {}  # and why
        self._only_low: Set[str] = frozenset()
        self._recorder = recorder
        self._changes = ChangeTimes()
        self.turn = PlaceTurn()

    def look(self, known: ModelNeeds, transition: Transition, rules: ControlRules, now_s: float) -> str | None:
        """Works out whose `turn` it is, and returns why a plan is due for it, if one is: where there is no room, not
        again and again.
        """
        before, self.turn, is_first = self.turn, PlaceTurn(), not self._waits_since_s
        self._changes.look(known.fleet.at(now_s), known.goal, self._finish_s.keys(), now_s)
        in_vain = [*_in_vain(known, now_s)]
        waiting = {**known.waiting(now_s), **self._returning(known, in_vain, now_s)}
        self._waits_since_s = {m: self._waits_since_s.get(m, now_s) for m in waiting}
        if not waiting and not self._finish_s:
            return None
        placed = known.guests()
        self._finish_s = {m: s for m, s in self._finish_s.items() if m not in placed}
        guests = [*_guests(known, transition, now_s), *in_vain]
        load_s = self._load_s(known, waiting)
        turn_s = turn_length_s(len(waiting), len(placed), rules, load_s)
        self._note_failures(known, guests, now_s)
        self._only_low = {g.model for g in guests if g.used_in_earnest_s < g.last_used_s}
        # A turn begins when the model is ready: it would go by while it loads. Nobody noted that before anybody waited.
        known_s = {g.model: g.placed_s if is_first else now_s for g in guests if not g.in_vain}
        self._ready_since_s = known_s | {m: s for m, s in self._ready_since_s.items() if m in placed and not is_first}
        in_order = sorted(waiting, key=lambda m: (self._waits_since_s[m], m))
        if any(waiting.values()):
            self.turn = self._due([m for m in in_order if waiting[m]], guests, turn_s, rules, now_s)
        else:  # what has low priority has what nobody has used for long
            rested = [g for g in guests if now_s - g.last_used_s >= rules.min_residency_s]
            self.turn = PlaceTurn(waiting=tuple(in_order[: len(rested)]), yielding=_longest_unused(rested))
        if not self.turn.waiting or (self.turn == before and now_s - self._tried_s < _TRIED_AGAIN_S):
            return None
        self._tried_s = now_s
        first = self.turn.waiting[0]
        waited_s = now_s - self._waits_since_s[first]
        self._given_s = max(turn_s, _FINISH_SHARE * (rules.hold_s - load_s) - waited_s)
        return f"{', '.join(self.turn.waiting)} waited for a place, {first} {waited_s:.0f} s"

    def applied_to(self, needs: Needs) -> Needs:
        """Returns them with whose turn it is; places that are free are for those who have waited longest."""
        order = sorted(needs.latecomers, key=lambda m: self._waits_since_s.get(m, float("inf")))
        return replace(needs, turn=self.turn, latecomers=tuple(order))

    def give_way(self, models: Sequence[str], now_s: float) -> str:
        """Notes that these leave, for those whose turn it is if it is anybody's, and says so."""
        if self.turn.waiting:
            self._changes.begin(self.turn.waiting, now_s)
            self._finish_s |= {m: 0.0 if m in self._only_low else self._given_s for m in models}
        return "".join(f"; {model} gives up its place" for model in models)

    def finish_s(self, report: UnitReport, place_of: Callable[[str], str]) -> dict[str, float]:
        """Returns how long streams of models that give way on a unit have to end, with those of their adapters."""
        there = {s.model: place_of(s.model) for s in report.models if s.phase is not ModelPhase.ASLEEP}
        return {model: self._finish_s[place] for model, place in there.items() if place in self._finish_s}

    def _returning(self, known: ModelNeeds, in_vain: Sequence[Guest], now_s: float) -> Mapping[str, bool]:
        """Returns models with streams that run, which give way to such as came in vain."""
        for_nothing = {home for guest in in_vain for home in known.goal.units_of(guest.model)}
        there = {m for home in for_nothing for m in known.fleet.lingering(home)} & self._finish_s.keys()
        there = {m for m in there if known.catalog.places(m)}  # others have left the fleet file meanwhile
        return {m: m not in self._only_low for m in there if now_s - known.last_used_s(m) < _IDLE_S}

    def _note_failures(self, known: ModelNeeds, guests: Collection[Guest], now_s: float) -> None:
        """Counts who gave way because it does not load: it is loaded nowhere for a while once that was so often."""
        placed = known.goal.placed
        for model in sorted(self._failed.keys() - placed):
            known.fleet.note_failed_turn(model, self._failed[model], now_s)
        ready = {g.model for g in guests if not g.fails}
        self._failed = {m: error for m, error in self._failed.items() if m in placed - ready}
        self._failed |= {g.model: known.fleet.load_error(g.model) for g in guests if g.fails}

    def _load_s(self, known: ModelNeeds, models: Collection[str]) -> float:
        """Returns how long a place is without a model while one of these comes: as the last changes took, or, if it is
        more, what is told of them: a copy where one sleeps on a unit, else what loads took; the mean of what is known.
        """
        asleep = known.fleet.asleep().values()
        measured = {t.model: t.seconds / t.loads for t in self._recorder.load_times()}
        told = (min((unit[m] for unit in asleep if m in unit), default=measured.get(m)) for m in models)
        found = [seconds for seconds in told if seconds is not None]
        return max(self._changes.mean_s, sum(found) / max(1, len(found)))

    def _due(
        self, order: Sequence[str], guests: Sequence[Guest], turn_s: float, rules: ControlRules, now_s: float
    ) -> PlaceTurn:
        idle = [g for g in guests if now_s - g.used_in_earnest_s >= _IDLE_S]
        served = [g for g in guests if g not in idle and now_s - self._ready_since_s[g.model] >= turn_s]
        patient = [m for m in order if now_s - self._waits_since_s[m] >= turn_s]  # the first ones
        waiting = order[: max(len(idle), min(len(patient), len(idle) + len(served)))]
        is_urgent = any(now_s - self._waits_since_s[m] >= rules.hold_s / 2 for m in order)
        served.sort(key=lambda g: (self._ready_since_s[g.model] if is_urgent else g.rate_per_s, g.model))
        busy = tuple(g.model for g in served) if patient else ()  # where what is idle is not room enough
        return PlaceTurn(waiting=tuple(waiting), yielding=_longest_unused(idle) + busy) if waiting else PlaceTurn()


def _longest_unused(guests: Sequence[Guest]) -> tuple[str, ...]:
    return tuple(g.model for g in sorted(guests, key=lambda g: (g.used_in_earnest_s, g.last_used_s, g.model)))


def turn_length_s(num_waiting: int, num_guests: int, rules: ControlRules, load_s: float = 0.0) -> float:
    """Returns how long a model keeps its place while others wait. Of W that wait and G with places each has a share of
    hold_s, s = hold_s * G / (W + G), for a load, a turn, and as much again for streams to end: a turn is a third of
    that, less where loads take more than the other third; but half a load at least, so that a place serves for as long
    as it loads where there is not time for all.
    """
    share_s = rules.hold_s * num_guests / max(1, num_waiting + num_guests)
    turn_s = max(min(share_s / 3, (share_s - load_s) / 2), load_s / 2)
    return max(_LEAST_TURN_S, min(rules.min_residency_s, turn_s))


def _guests(known: ModelNeeds, transition: Transition, now_s: float) -> Iterator[Guest]:
    fleet = known.fleet.at(now_s)
    for model in known.guests():
        homes = known.goal.units_of(model)
        phases = {fleet.phase(home, model) for home in homes}
        if phases in ({ModelPhase.READY}, {ModelPhase.FAILED}):
            placed_s = max(transition.placed_s(home, model) for home in homes)
            if ModelPhase.FAILED in phases:
                yield Guest(model=model, placed_s=placed_s, fails=True)
                continue
            yield Guest(
                model=model,
                placed_s=placed_s,
                last_used_s=known.last_used_s(model),
                used_in_earnest_s=known.used_in_earnest_s(model),
                rate_per_s=known.rate_per_s(model),
            )


def _in_vain(known: ModelNeeds, now_s: float) -> Iterator[Guest]:
    """Yields models on their way to places that others may have: those who asked for them have left, or all that comes
    yet are files to a disk.
    """
    for model in known.guests():
        phases = {known.fleet.phase(home, model) for home in known.goal.units_of(model)}
        is_coming = phases.isdisjoint({ModelPhase.READY, ModelPhase.FAILED})
        if is_coming and (known.downloads(model) or now_s - known.last_used_s(model) >= _IDLE_S):
            yield Guest(model=model, in_vain=True)
