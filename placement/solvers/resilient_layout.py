"""Layouts with replicas added on other nodes, judged by what may come."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from placement.estimation.plan_estimate import estimate_with
from placement.estimation.problem_arrays import Estimator, make_instance
from placement.nodes import FleetPlan
from placement.packing.layout import plan_of_packing
from placement.packing.packing import Packing
from placement.packing.spare_replicas import spread_replicas
from placement.problem import PlacementModel
from placement.scenarios import resilience, scenarios_of

_MOST_JUDGED = 20_000  # units times models
_LEAST_HEADROOMS = (1.5, 1.15)  # that a unit keeps which takes one more


def most_resilient(
    layout: FleetPlan, models: Sequence[PlacementModel], estimator: Estimator, is_time_up: Callable[[], bool]
) -> FleetPlan:
    """Returns the layout, or the same units with more replicas, whichever serves most over all scenarios and no less of
    the demand. Fleets that are too large to be judged in time get the replicas that leave most headroom.
    """
    units, numbered = layout.units, dict(enumerate(layout.units))
    is_judged = len(units) * len(models) <= _MOST_JUDGED
    scenarios = scenarios_of(units, models) if is_judged else ()
    instance = make_instance(units, models, estimator)
    planned = estimate_with(instance, units, layout.plan)
    best, merit = layout, resilience(units, layout.plan, scenarios, estimator).merit()
    for least in _LEAST_HEADROOMS:
        packing = Packing.of_units(instance, units)
        for number, unit in enumerate(planned.units):
            for replica in unit.replicas:
                packing.put(number, instance.index[replica.model], replica.rate_per_s)
        spread_replicas(packing, numbered, least_headroom=least, is_time_up=is_time_up)
        if is_time_up():
            break
        plan = replace(plan_of_packing(packing, numbered, rule=""), unplaced=layout.plan.unplaced)
        found = resilience(units, plan, scenarios, estimator).merit()
        if (found > merit or not is_judged) and estimate_with(instance, units, plan).objective()[
            :2
        ] >= planned.objective()[:2]:
            best, merit = FleetPlan(units=units, plan=plan), found
        if not is_judged:
            break
    return best
