"""Ways to fill an empty packing with all models; a solver keeps the best."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from placement.packing.insertion import Insertion, InsertionRules
from placement.packing.packing import Packing

_NO_LOAD = 1e-9
_SACRIFICED_LOADS = (0.1, 0.3, 0.5, 0.2)  # parts of the fleet's work


def largest_first(empty: Packing, rules: InsertionRules, openings: Sequence[tuple[int, int]] = ()) -> Packing:
    """Model after model, by the part of a unit that their load takes."""
    return _in_turn(empty, rules, openings, empty.instance.orders()[0])


def other_constructions(
    empty: Callable[[], Packing],
    rules: InsertionRules,
    openings: Sequence[tuple[int, int]] = (),
    *,
    chooses: bool,
) -> Iterator[Packing]:
    """`chooses`: not all can be served, so some of the ways are those that choose what to serve."""
    instance = empty().instance
    if instance.costs and chooses:
        for part in _SACRIFICED_LOADS:
            yield _dear_requests_together(empty(), rules, openings, part)
        yield _cheap_requests_first(empty(), rules, openings)
    for order in instance.orders()[1:]:
        yield _in_turn(empty(), rules, openings, order)


def _in_turn(
    packing: Packing, rules: InsertionRules, openings: Sequence[tuple[int, int]], order: Sequence[int]
) -> Packing:
    insertion = Insertion(packing, rules, openings)
    for model in _wanted(packing, order):
        insertion.insert(model, float(packing.instance.rates_per_s[model]))
    return packing


def _cheap_requests_first(packing: Packing, rules: InsertionRules, openings: Sequence[tuple[int, int]]) -> Packing:
    """A replica of every model, then the rest of the demand as far as it goes."""
    insertion = Insertion(packing, rules, openings)
    rest = dict(enumerate(map(float, packing.instance.rates_per_s)))
    for model in _wanted(packing, packing.instance.orders()[-1]):
        rest[model] -= insertion.insert_replica(model, rest[model]) or 0.0
    for model in _wanted(packing, packing.instance.cheapest_first()):
        if rest[model] > _NO_LOAD or len(packing.homes[model]) < packing.instance.models[model].min_replicas:
            insertion.insert(model, max(0.0, rest[model]))
    return packing


def _dear_requests_together(
    packing: Packing, rules: InsertionRules, openings: Sequence[tuple[int, int]], part: float
) -> Packing:
    """Models whose requests take most, up to a part of all work, share as few units as their weights need, and overload
    them; the others get what they ask for on the rest.
    """
    insertion = Insertion(packing, rules, openings)
    cheap_first = _wanted(packing, packing.instance.cheapest_first())
    work = packing.instance.work()
    done = np.cumsum([work[m] for m in cheap_first])
    dear = {m for m, before in zip(cheap_first, done, strict=True) if before > (1 - part) * done[-1]}
    for model in (m for m in _wanted(packing, packing.instance.orders()[-1]) if m in dear):
        insertion.insert_replica(model, _NO_LOAD)
    for model in dear:
        for unit in sorted(packing.homes[model]):
            rate = float(packing.instance.rates_per_s[model]) / len(packing.homes[model])
            packing.set_rate(unit, model, rate)
    for model in cheap_first:
        given = sum(packing.parts[u][model] for u in packing.homes[model])
        missing = len(packing.homes[model]) < packing.instance.models[model].min_replicas
        if model not in dear or missing:
            insertion.insert(model, max(0.0, float(packing.instance.rates_per_s[model]) - given))
    return packing


def _wanted(packing: Packing, order: Sequence[int]) -> Sequence[int]:
    models, rates = packing.instance.models, packing.instance.rates_per_s
    return [m for m in order if rates[m] > 0 or models[m].min_replicas > 0]
