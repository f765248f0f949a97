"""Ruin and recreation: take all models off a few units, put them back in another way, keep what is no worse."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from placement.estimation.plan_estimate import pull_of
from placement.packing.constructions import Openings
from placement.packing.insertion import Insertion, InsertionRules
from placement.packing.packing import Packing
from placement.packing.packing_objective import Key, key_of, serves_all

_TOLERANCE = 0.01  # of the demand
_REGROUPING = 0.5  # of the rounds
_MOST_BALANCED, _BALANCING_ROUNDS = 8, 5
_MOST_OVERLOADED = 32  # units


def improve(
    packing: Packing,
    rules: Sequence[InsertionRules],
    openings: Openings = (),
    *,
    seed: int,
    rounds: int | None,
    is_time_up: Callable[[], bool],
) -> None:
    """Improves the packing in place. `rounds` None: it grows with the fleet."""
    draw = random.Random(seed)
    most = rounds if rounds is not None else 400 + 10 * len(packing.instance.models)
    now = best = key_of(packing)
    kept, idle = packing.snapshot(), 0
    patience = max(150, 600 - 5 * len(packing.instance.models))  # rounds are cheap where there is little to try
    for number in range(most if packing.instance.costs else 0):
        if idle >= patience or is_time_up() or (not openings and serves_all(best)):
            break
        packing.begin()
        rule = replace(draw.choice(list(rules)), few_replicas=draw.random() < 0.4)
        _ruin_and_recreate(packing, draw, rule, openings, is_time_up)
        if is_time_up():
            packing.roll_back()
            break
        key = key_of(packing)
        idle += 1
        if key <= now or _is_near(key, best, _TOLERANCE * (1 - number / most)):
            packing.commit()
            now = key
        else:
            packing.roll_back()
        if now < best:
            best, kept, idle = now, packing.snapshot(), 0
    packing.restore(kept)


def _is_near(key: Key, best: Key, tolerance: float) -> bool:
    """Record-to-record travel: a little worse than the best so far is accepted, ever less of it."""
    return key[0] <= best[0] and key[1] <= best[1] + tolerance and best[1] > 0


def _ruin_and_recreate(
    packing: Packing, draw: random.Random, rules: InsertionRules, openings: Openings, is_time_up: Callable[[], bool]
) -> None:
    """Leaves the packing as it comes when time is up."""
    rates = [m.demand.rate_per_s for m in packing.instance.models]
    lost: dict[int, float] = {}
    for unit in _ruined(packing, draw):
        for model in sorted(packing.parts[unit]):
            lost[model] = lost.get(model, 0.0) + packing.take(unit, model)
        if packing.nodes[unit] is not None:
            packing.close(unit)
    for model, wanted in enumerate(packing.instance.models):
        is_wanted = rates[model] > 0 or wanted.min_replicas > 0
        if is_wanted and not packing.homes[model] and packing.instance.placeable[model]:
            lost.setdefault(model, rates[model])
    costs = packing.instance.costs[0]
    weight = {m: costs.resident_bytes[m] if draw.random() < 0.5 else lost[m] for m in lost}
    blind, regroups = draw.random() < 0.3, bool(openings) and draw.random() < _REGROUPING
    insertion = Insertion(packing, rules, openings, is_time_up)
    for model in sorted(lost, key=lambda m: (draw.random() if blind else -weight[m], m)):
        if is_time_up():
            return
        if regroups:
            small = _small_openings(packing, draw, openings)
            Insertion(packing, rules, small, is_time_up).insert(model, lost[model])
        if not regroups or not packing.homes[model]:
            insertion.insert(model, lost[model])
    for model in sorted(lost):
        _balance(packing, model)


def _small_openings(packing: Packing, draw: random.Random, openings: Openings) -> Openings:
    """Up to a size. Rules that look at one model at a time take a mesh that carries it, where two smaller ones that
    leave it overloaded would carry it and its neighbour better.
    """
    costs = packing.instance.costs
    most_gpus = draw.choice(sorted({costs[kind].num_gpus for _, kind in openings}))
    return [(pool, kind) for pool, kind in openings if costs[kind].num_gpus <= most_gpus]


def balance(packing: Packing, is_time_up: Callable[[], bool]) -> None:
    """Shifts loads as routing will; not where so many units are overloaded that no shift helps."""
    for _ in range(_BALANCING_ROUNDS):
        overloaded = np.flatnonzero(packing.factor < 1).tolist()
        if len(overloaded) > _MOST_OVERLOADED:
            return
        for model in sorted({m for u in overloaded for m in packing.parts[u]}):
            if is_time_up():
                return
            _balance(packing, model)


def _balance(packing: Packing, model: int) -> None:
    """Shifts load from overloaded homes of a model to its others, as routing will."""
    homes = sorted(packing.homes[model])
    if not 1 < len(homes) <= _MOST_BALANCED or all(packing.factor[u] >= 1 for u in homes):
        return
    for _ in range(_BALANCING_ROUNDS):
        rates = np.array([packing.parts[u][model] for u in homes])
        pull = pull_of(rates, packing.factor[homes])
        if pull.sum() <= 0:
            return
        for unit, share in zip(homes, pull / pull.sum(), strict=True):
            packing.set_rate(unit, model, float(rates.sum() * share))


def _ruined(packing: Packing, draw: random.Random) -> list[int]:
    """A few units: one that is overloaded or little used, and others at random."""
    units = [u for u in packing.open_units() if packing.parts[u]]
    if not units:
        return []
    overloaded = [u for u in units if packing.factor[u] < 1]
    idle_first = sorted(units, key=lambda u: (-packing.factor[u], u))[: max(3, len(units) // 4)]
    first = draw.choice(overloaded if overloaded and draw.random() < 0.6 else idle_first)
    others = [u for u in units if u != first]
    return [first, *draw.sample(others, min(len(others), draw.randint(0, 3)))]
