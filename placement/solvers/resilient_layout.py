"""Layouts with replicas added on other nodes, judged by what may come."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from placement.estimation.plan_estimate import FleetEstimate, estimate_with
from placement.estimation.problem_arrays import Estimator, Instance, make_instance
from placement.nodes import FleetPlan
from placement.packing.layout import plan_of_packing
from placement.packing.packing import Packing
from placement.packing.spare_replicas import spread_replicas
from placement.problem import PlacementModel
from placement.scenarios import resilience, scenarios_of

_MOST_JUDGED = 20_000  # units times models
# That a unit keeps which takes one more: for a model's second node, and for further replicas.
_LEAST_HEADROOMS = ((1.5, 1.5), (1.15, 1.5), (1.0, 2.0), (1.15, 1.15), (1.0, 1.0))


def most_resilient(
    layouts: Sequence[FleetPlan],
    models: Sequence[PlacementModel],
    estimator: Estimator,
    is_time_up: Callable[[], bool],
) -> FleetPlan:
    """Returns the first layout, or one of them with more replicas, whichever serves most over all scenarios and no less
    of the demand. All hold the same replicas; the last one has units on every node that any has. Fleets that are too
    large to be judged in time get the replicas that leave most headroom, on the units of the first.
    """
    first, widest = layouts[0], layouts[-1]
    is_judged = len(widest.units) * len(models) <= _MOST_JUDGED
    scenarios = scenarios_of(widest.units, models) if is_judged else ()
    planned = estimate_with(make_instance(first.units, models, estimator), first.units, first.plan).objective()[:2]
    best, merit = first, resilience(first.units, first.plan, scenarios, estimator).merit()
    for layout in layouts if is_judged else layouts[:1]:
        instance = make_instance(layout.units, models, estimator)
        for plan in _with_replicas(layout, instance, is_time_up):
            found = resilience(layout.units, plan.plan, scenarios, estimator).merit()
            serves = estimate_with(instance, layout.units, plan.plan).objective()[:2]
            if (found > merit or not is_judged) and serves >= planned:
                best, merit = plan, found
            if not is_judged:
                break
    return _without_empty(best)


def _with_replicas(layout: FleetPlan, instance: Instance, is_time_up: Callable[[], bool]) -> Iterator[FleetPlan]:
    planned: FleetEstimate = estimate_with(instance, layout.units, layout.plan)
    numbered = dict(enumerate(layout.units))
    for least, further in _LEAST_HEADROOMS:
        packing = Packing.of_units(instance, layout.units)
        for number, unit in enumerate(planned.units):
            for replica in unit.replicas:
                packing.put(number, instance.index[replica.model], replica.rate_per_s)
        spread_replicas(packing, numbered, least_headroom=least, beyond_two_nodes=further, is_time_up=is_time_up)
        if is_time_up():
            return
        plan = replace(plan_of_packing(packing, numbered, rule=""), unplaced=layout.plan.unplaced)
        yield FleetPlan(units=layout.units, plan=plan)


def _without_empty(layout: FleetPlan) -> FleetPlan:
    held = {u.unit_id for u in layout.plan.units if u.models}
    plan = replace(layout.plan, units=tuple(u for u in layout.plan.units if u.unit_id in held))
    return FleetPlan(units=tuple(u for u in layout.units if u.unit_id in held), plan=plan)
