"""Compares two packings, as the search shares the loads and once routing does."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from placement.estimation.model_floors import starved
from placement.estimation.plan_estimate import estimate_models_with
from placement.estimation.throughput import Floats
from placement.packing.packing import Packing
from placement.plan import ModelPlacement, Plan, UnitCapacity, UnitPlan

# Of all requests: what it costs to take every running replica away. Its place serves nobody while weights are read
# there, some ten seconds, and demand is looked at again within a minute or two.
_ALL_DROPPED = 0.1

Key = tuple[int, float, float, int, int]
"""Less is better: replicas that are missing, the share of requests that is not served with what models that starve and
moves count beside it, the share that is not served of the model that has it worst, GPUs in use, replicas that have to
be loaded. Models that no unit can hold count nowhere.
"""


def key_of(packing: Packing) -> Key:
    """Returns the key of a packing. Where units run already, using fewer of them is no gain."""
    rates = packing.instance.rates_per_s
    asked = packing.instance.placeable & (rates > 0)
    cost = (packing.gpus_used, 0) if packing.running is None else (0, packing.loaded)
    if not asked.any():
        return packing.missing, 0.0, 0.0, *cost
    served, demand = packing.served_of[asked], rates[asked]
    unserved, shares = 1.0 - float(served.sum() / demand.sum()), served / demand
    lost = unserved + starved(shares) + moves_cost(packing)
    return packing.missing, round(lost, 4), round(1.0 - float(shares.min()), 3), *cost


def moves_cost(packing: Packing) -> float:
    """Returns what running replicas count that are gone, as a share of all requests."""
    return _ALL_DROPPED * packing.dropped / len(packing.running) if packing.running else 0.0


def serves_all(key: Key) -> bool:
    """Whatever has to move for it."""
    return key[0] == 0 and key[2] == 0.0


@dataclass(frozen=True, slots=True, eq=False)
class RoutedService:
    """`worth`: the share of all requests that is served, less what models that starve and moves count. `by_model`: the
    share of each model's requests, all of a model that nobody asks for.
    """

    worth: float
    by_model: Floats

    @classmethod
    def of(cls, packing: Packing, units: Mapping[int, UnitCapacity]) -> "RoutedService":
        instance = packing.instance
        plan = Plan(
            units=tuple(
                UnitPlan(
                    unit_id=unit.unit_id,
                    models=tuple(
                        ModelPlacement(model=instance.models[m].model, quota_blocks=0) for m in packing.parts[number]
                    ),
                )
                for number, unit in units.items()
            )
        )
        served = np.array([m.served_per_s for m in estimate_models_with(instance, list(units.values()), plan)])
        rates = instance.rates_per_s
        total = float(rates.sum())
        by_model = np.divide(served, rates, out=np.ones_like(rates), where=rates > 0)
        share = float(served.sum()) / total if total > 0 else 1.0
        starving = starved(by_model[instance.placeable & (rates > 0)])
        return cls(worth=share - starving - moves_cost(packing), by_model=by_model)
