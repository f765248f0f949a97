"""Tells what a packing serves once routing shares the loads: the search shares them as it likes."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from placement.estimation.model_floors import starved
from placement.estimation.plan_estimate import estimate_models_with
from placement.estimation.throughput import Floats
from placement.packing.packing import Packing
from placement.packing.packing_objective import moves_cost
from placement.plan import ModelPlacement, Plan, UnitCapacity, UnitPlan


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
