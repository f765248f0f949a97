"""Packs what runs as it runs: the start of a search that changes a plan."""

from collections import defaultdict
from collections.abc import Sequence

from placement.estimation.problem_arrays import Instance
from placement.packing.packing import Packing
from placement.plan import Plan, UnitCapacity


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
