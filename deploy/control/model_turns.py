"""Lets models take turns where units hold fewer than are asked for: who waits for a place, and who may give one up."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from deploy.control.control_rules import ControlRules
from deploy.control.model_needs import ModelNeeds
from deploy.control.plan_choice import PlaceTurn
from deploy.control.transition import Transition
from pdmux_actor.lease import ModelPhase

_IDLE_S = 2.0  # a client that sends one request after the other pauses for less
_LEAST_TURN_S = 1.0
_TRIED_AGAIN_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """A model that has a place for as long as it is used, and is ready there. `placed_s`: since when it has it."""

    model: str
    placed_s: float
    last_used_s: float
    rate_per_s: float


class ModelTurns:
    """Gateways refuse what has waited for `hold_s`: all that are asked for are to have a place twice as often, however
    seldom they are asked for. Who is not used now gives way at once, others after a turn: who is asked for least, or
    once somebody has waited for half of `hold_s`, who has had its place longest.
    """

    def __init__(self) -> None:
        self._waits_since_s: dict[str, float] = {}
        self._ready_since_s: dict[str, float] = {}
        self._tried_s = float("-inf")
        self.turn = PlaceTurn()

    def look(self, known: ModelNeeds, transition: Transition, rules: ControlRules, now_s: float) -> str | None:
        """Works out whose `turn` it is, and returns why a plan is due for it, if one is: where there is no room, not
        again and again.
        """
        before = self.turn
        waiting = known.waiting(now_s)
        self._waits_since_s = {m: self._waits_since_s.get(m, now_s) for m in waiting}
        self.turn = self._due(list(_guests(known, transition, now_s)), rules, now_s) if waiting else PlaceTurn()
        if not self.turn.waiting or (self.turn == before and now_s - self._tried_s < _TRIED_AGAIN_S):
            return None
        self._tried_s = now_s
        first = self.turn.waiting[0]
        return f"{', '.join(self.turn.waiting)} waited for a place, {first} {now_s - self._waits_since_s[first]:.0f} s"

    def _due(self, guests: Iterable[Guest], rules: ControlRules, now_s: float) -> PlaceTurn:
        order = sorted(self._waits_since_s, key=lambda m: (self._waits_since_s[m], m))
        has_place, is_first = {g.model: g for g in guests}, not self._ready_since_s
        # A turn begins when the model is ready: it would go by while it loads. Nobody noted that before anybody waited.
        self._ready_since_s = {
            m: g.placed_s if is_first else self._ready_since_s.get(m, now_s) for m, g in has_place.items()
        }
        turn_s = turn_length_s(len(order), len(has_place), rules)
        idle = [g for g in has_place.values() if now_s - g.last_used_s >= _IDLE_S]
        served = [g for g in has_place.values() if g not in idle and now_s - self._ready_since_s[g.model] >= turn_s]
        patient = [m for m in order[len(idle) :] if now_s - self._waits_since_s[m] >= turn_s]
        waiting = (*order[: len(idle)], *patient[: len(served)])
        is_urgent = any(now_s - self._waits_since_s[m] >= rules.hold_s / 2 for m in order)
        idle.sort(key=lambda g: (g.last_used_s, g.model))
        served.sort(key=lambda g: (self._ready_since_s[g.model] if is_urgent else g.rate_per_s, g.model))
        yielding = idle + served if len(waiting) > len(idle) else idle
        return PlaceTurn(waiting=waiting, yielding=tuple(g.model for g in yielding)) if waiting else PlaceTurn()


def turn_length_s(num_waiting: int, num_guests: int, rules: ControlRules) -> float:
    """W that wait and G with places: each comes to its place every turn_s * (W + G) / G, and that is hold_s / 2."""
    share = num_guests / max(1, num_waiting + num_guests)
    return max(_LEAST_TURN_S, min(rules.min_residency_s, rules.hold_s / 2 * share))


def _guests(known: ModelNeeds, transition: Transition, now_s: float) -> Iterator[Guest]:
    fleet = known.fleet.at(now_s)
    for model in known.guests():
        homes = known.goal.units_of(model)
        if all(fleet.phase(home, model) is ModelPhase.READY for home in homes):
            yield Guest(
                model=model,
                placed_s=max(transition.placed_s(home, model) for home in homes),
                last_used_s=known.last_used_s(model),
                rate_per_s=known.rate_per_s(model),
            )
