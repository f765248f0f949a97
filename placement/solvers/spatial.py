"""The honest baseline: every model on GPUs of its own, with as many replicas of the right size as its load takes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from placement.estimation.problem_arrays import Estimator, make_instance
from placement.nodes import FleetPlan, NodePool, openings_of
from placement.packing.insertion import Insertion, InsertionRules
from placement.packing.layout import carve, plan_of_packing
from placement.packing.packing import Packing
from placement.packing.packing_objective import key_of
from placement.plan import Plan, UnitCapacity
from placement.problem import PlacementModel
from placement.solvers.entry import IsTimeUp, SolverEntry

_RULE = "solver spatial gives every model units of its own; use solver search"
_RULES = InsertionRules(margin=1.0, opening_cost=1.0, dedicated=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpatialSolver:
    estimator: Estimator = field(default_factory=Estimator)

    def solve(self, units: Sequence[UnitCapacity], models: Sequence[PlacementModel], current: Plan | None) -> Plan:
        """`current` is not looked at."""
        ordered = sorted(units, key=lambda u: u.unit_id)
        instance = make_instance(ordered, models, self.estimator)
        best = min((_filled(Packing.of_units(instance, ordered), (), order) for order in instance.orders()), key=key_of)
        return plan_of_packing(best, dict(enumerate(ordered)), rule=_RULE)

    def lay_out(self, pools: Sequence[NodePool], models: Sequence[PlacementModel]) -> FleetPlan:
        openings = openings_of(pools)
        instance = make_instance([unit for _, unit in openings], models, self.estimator)
        kinds = instance.openings(openings)
        best = min(
            (_filled(Packing.of_nodes(instance, pools), kinds, order) for order in instance.orders()), key=key_of
        )
        return carve(best, pools, rule=_RULE)


def _make(estimator: Estimator, is_time_up: IsTimeUp) -> SpatialSolver:
    return SpatialSolver(estimator=estimator)


SOLVER = SolverEntry(
    name="spatial",
    rule="GPUs of its own for every model, replicas of the right size: the baseline that sharing has to beat",
    make=_make,
    make_for_nodes=_make,
)


def _filled(packing: Packing, openings: Sequence[tuple[int, int]], order: Sequence[int]) -> Packing:
    """One replica for each model first; then, where GPUs are left, the rest of what is asked."""
    insertion = Insertion(packing, _RULES, openings)
    models = packing.instance.models
    rest = {}
    for model in order:
        rate = models[model].demand.rate_per_s
        if rate > 0 or models[model].min_replicas > 0:
            rest[model] = rate - (insertion.insert_replica(model, rate) or 0.0)
    for model in order:
        if rest.get(model, 0.0) > 0 or len(packing.homes[model]) < models[model].min_replicas:
            insertion.insert(model, rest.get(model, 0.0))
    return packing
