"""Ways to fill an empty packing with all models; a solver keeps the best."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from placement.estimation.problem_arrays import Instance
from placement.packing.insertion import Insertion, InsertionRules
from placement.packing.packing import Packing
from placement.plan import Plan, UnitCapacity

Openings = Sequence[tuple[int, int]]
"""(pool, kind) of units that may be cut out of nodes; none where the units are given."""
IsTimeUp = Callable[[], bool]

_NO_LOAD = 1e-9
_SACRIFICED_LOADS = (0.1, 0.3, 0.5, 0.2)  # parts of the fleet's work


def largest_first(
    empty: Packing, rules: InsertionRules, openings: Openings = (), is_time_up: IsTimeUp = lambda: False
) -> Packing:
    """Packs model after model, by the part of a unit that their load takes; every one even if time is up."""
    return _in_turn(Insertion(empty, rules, openings, is_time_up), empty, empty.instance.orders()[0])


def rebuilds(empty: Callable[[], Packing], rules: InsertionRules, is_time_up: IsTimeUp) -> Iterator[Packing]:
    """Packs given units anew where not all can be served, in several ways. The last one is left unfinished when time
    is up.
    """
    yield from other_constructions(empty, rules, chooses=True, is_time_up=is_time_up)
    packing = empty()
    yield _in_turn(Insertion(packing, rules, (), is_time_up), packing, packing.instance.orders()[0], is_time_up)


def other_constructions(
    empty: Callable[[], Packing],
    rules: InsertionRules,
    openings: Openings = (),
    *,
    chooses: bool,
    is_time_up: IsTimeUp = lambda: False,
) -> Iterator[Packing]:
    """`chooses`: not all can be served, so some of the ways are those that choose what to serve. What is under way when
    time is up is left unfinished.
    """
    instance = empty().instance

    def insertion(packing: Packing) -> Insertion:
        return Insertion(packing, rules, openings, is_time_up)

    if instance.costs and chooses:
        for part in _SACRIFICED_LOADS:
            packing = empty()
            yield _dear_requests_together(insertion(packing), packing, part, is_time_up)
        packing = empty()
        yield _cheap_requests_first(insertion(packing), packing, is_time_up)
    for order in instance.orders()[1:]:
        packing = empty()
        yield _in_turn(insertion(packing), packing, order, is_time_up)


def _in_turn(insertion: Insertion, packing: Packing, order: Sequence[int], ends: IsTimeUp = lambda: False) -> Packing:
    for model in _wanted(packing, order):
        if ends():
            break
        insertion.insert(model, float(packing.instance.rates_per_s[model]))
    return packing


def _cheap_requests_first(insertion: Insertion, packing: Packing, ends: IsTimeUp) -> Packing:
    """A replica of every model, then the rest of the demand as far as it goes."""
    rest = dict(enumerate(map(float, packing.instance.rates_per_s)))
    for model in _wanted(packing, packing.instance.orders()[-1]):
        if ends():
            return packing
        rest[model] -= insertion.insert_replica(model, rest[model]) or 0.0
    for model in _wanted(packing, packing.instance.cheapest_first()):
        if ends():
            break
        if rest[model] > _NO_LOAD or len(packing.homes[model]) < packing.instance.models[model].min_replicas:
            insertion.insert(model, max(0.0, rest[model]))
    return packing


def _dear_requests_together(insertion: Insertion, packing: Packing, part: float, ends: IsTimeUp) -> Packing:
    """Models whose requests take most, up to a part of all work, share as few units as their weights need, and overload
    them; the others get what they ask for on the rest.
    """
    cheap_first = _wanted(packing, packing.instance.cheapest_first())
    work = packing.instance.work()
    done = np.cumsum([work[m] for m in cheap_first])
    dear = {m for m, before in zip(cheap_first, done, strict=True) if before > (1 - part) * done[-1]}
    for model in (m for m in _wanted(packing, packing.instance.orders()[-1]) if m in dear):
        if ends():
            return packing
        insertion.insert_replica(model, _NO_LOAD)
    for model in dear:
        for unit in sorted(packing.homes[model]):
            rate = float(packing.instance.rates_per_s[model]) / len(packing.homes[model])
            packing.set_rate(unit, model, rate)
    for model in cheap_first:
        if ends():
            break
        given = sum(packing.parts[u][model] for u in packing.homes[model])
        missing = len(packing.homes[model]) < packing.instance.models[model].min_replicas
        if model not in dear or missing:
            insertion.insert(model, max(0.0, float(packing.instance.rates_per_s[model]) - given))
    return packing


def _wanted(packing: Packing, order: Sequence[int]) -> Sequence[int]:
    models, rates = packing.instance.models, packing.instance.rates_per_s
    held = packing.instance.placeable
    return [m for m in order if held[m] and (rates[m] > 0 or models[m].min_replicas > 0)]


def running_packing(instance: Instance, units: Sequence[UnitCapacity], current: Plan) -> Packing:
    """Packs the units as `current` has them: what runs stays, where it still fits, the hottest first."""
    packing = Packing.of_units(instance, units)
    hottest = sorted(range(len(instance.models)), key=lambda m: (-instance.rates_per_s[m], m))
    parts: defaultdict[int, dict[int, float]] = defaultdict(dict)
    homes_of = _homes(instance, units, current)
    for model in hottest:
        homes = homes_of[model][: instance.models[model].max_replicas]
        for unit in homes:
            if packing.costs_of(unit).runs[model]:
                parts[unit][model] = float(instance.rates_per_s[model]) / len(homes)
    packing.fill(parts)
    too_much = [u for u in parts if not bool(packing.costs_of(u).holds(packing.sums[u]))]
    packing.rearrange({unit: _held(packing, unit, parts[unit]) for unit in too_much})
    return packing


def _homes(instance: Instance, units: Sequence[UnitCapacity], current: Plan) -> dict[int, list[int]]:
    """Units of every model, in the plan's order."""
    numbers = {u.unit_id: i for i, u in enumerate(units)}
    homes: dict[int, list[int]] = {model: [] for model in range(len(instance.models))}
    for unit_plan in current.units:
        for placement in unit_plan.models if unit_plan.unit_id in numbers else ():
            if placement.model in instance.index:
                homes[instance.index[placement.model]].append(numbers[unit_plan.unit_id])
    return homes


def _held(packing: Packing, unit: int, wanted: dict[int, float]) -> dict[int, float]:
    """One after the other, those that fit beside those before."""
    held: dict[int, float] = {}
    for model, rate in wanted.items():
        if packing.factor_of(unit, {**held, model: rate}) >= 0:
            held[model] = rate
    return held
