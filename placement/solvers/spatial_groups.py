"""MuxServe's spatial baseline as published (§4.1): one fixed group of GPUs for every model, whoever asks for it.

The paper serves each model by itself on a group of GPUs; its release gives Llama 7B and 13B one A100-80G, 30B four and
65B eight. Those are the least sizes of which the weights fill at most a third, which is the rule here. Where the nodes
have fewer GPUs than that (the sixteen LLMs of Fig. 7 would take 46 of 32), groups are cut to the next smaller size,
first those whose weights then fill least. Demand is not looked at, and there are no replicas: `spatial` is what a model
gets that has GPUs to itself and is planned for.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from placement.estimation.problem_arrays import Estimator, Instance, make_instance
from placement.nodes import FleetPlan, NodePool, openings_of
from placement.packing.layout import carve, plan_of_packing
from placement.packing.packing import Packing
from placement.plan import Plan, UnitCapacity
from placement.problem import PlacementModel
from placement.solvers.entry import IsTimeUp, SolverEntry

_MOST_WEIGHTS = 1 / 3  # of a group's memory
_RULE = "solver spatial_groups gives every model one group of GPUs of its own; use solver search"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpatialGroupsSolver:
    estimator: Estimator = field(default_factory=Estimator)

    def solve(self, units: Sequence[UnitCapacity], models: Sequence[PlacementModel], current: Plan | None) -> Plan:
        """The groups are given. `current` is not looked at."""
        ordered = sorted(units, key=lambda u: u.unit_id)
        instance = make_instance(ordered, models, self.estimator)
        packing = Packing.of_units(instance, ordered)
        for model, rate_per_s in _largest_first(instance):
            free = [unit for unit in packing.open_units() if not packing.parts[unit]]
            kinds = {unit: int(packing.kind[unit]) for unit in free}
            fitting = [u for u in free if packing.factor_of(u, {model: rate_per_s}) >= 0]
            if fitting:
                home = min(fitting, key=lambda u: (_order(instance, model, kinds[u]), u))
                packing.put(home, model, rate_per_s)
        return plan_of_packing(packing, dict(enumerate(ordered)), rule=_RULE)

    def lay_out(self, pools: Sequence[NodePool], models: Sequence[PlacementModel]) -> FleetPlan:
        openings = openings_of(pools)
        instance = make_instance([unit for _, unit in openings], models, self.estimator)
        packing, kinds = Packing.of_nodes(instance, pools), instance.openings(openings)
        most_gpus = _group_sizes(packing, [kind for _, kind in kinds], sum(pool.num_gpus for pool in pools))
        for model, rate_per_s in _largest_first(instance):
            for pool, kind in sorted(kinds, key=lambda opening: (_order(instance, model, opening[1]), opening)):
                num_gpus = instance.costs[kind].num_gpus
                node = packing.node_for(pool, num_gpus) if num_gpus <= most_gpus.get(model, 0) else None
                if node is not None and packing.factor_alone(model, rate_per_s, kind) >= 0:
                    packing.put(packing.open(kind, node), model, rate_per_s)
                    break
        return carve(packing, pools, rule=_RULE)


def _make(estimator: Estimator, is_time_up: IsTimeUp) -> SpatialGroupsSolver:
    return SpatialGroupsSolver(estimator=estimator)


SOLVER = SolverEntry(
    name="spatial_groups",
    rule="MuxServe's spatial baseline as published: one group of GPUs for every model, the least of which its weights "
    "fill a third at most, whoever asks for it; no replicas",
    make=_make,
    make_for_nodes=_make,
)


def _largest_first(instance: Instance) -> Iterator[tuple[int, float]]:
    """Models that anybody asks for, and their rates."""
    by_size = instance.orders()[-1]
    for model in by_size:
        rate_per_s = float(instance.rates_per_s[model])
        if rate_per_s > 0 or instance.models[model].min_replicas > 0:
            yield model, rate_per_s


def _order(instance: Instance, model: int, kind: int) -> tuple[bool, int]:
    """Groups that are large enough come first, the least of them; then the largest of the others."""
    num_gpus, memory_bytes = instance.costs[kind].num_gpus, instance.kinds[kind].memory_bytes
    is_small = instance.models[model].spec.weight_bytes > _MOST_WEIGHTS * memory_bytes
    return is_small, -num_gpus if is_small else num_gpus


def _group_sizes(packing: Packing, kinds: Sequence[int], gpus: int) -> dict[int, int]:
    """GPUs of each model's group: the rule's, or as many fewer as it takes for all models to have one."""
    instance = packing.instance
    sizes: dict[int, list[int]] = {}
    for model, rate_per_s in _largest_first(instance):
        held = [kind for kind in kinds if packing.factor_alone(model, rate_per_s, kind) >= 0]
        if held:
            wanted = instance.costs[min(held, key=lambda kind: _order(instance, model, kind))].num_gpus
            possible = {instance.costs[kind].num_gpus for kind in held}
            sizes[model] = sorted((size for size in possible if size <= wanted), reverse=True)
    while sum(of_model[0] for of_model in sizes.values()) > gpus:
        fullness = [
            (instance.models[model].spec.weight_bytes / of_model[1], model)
            for model, of_model in sizes.items()
            if len(of_model) > 1
        ]
        if not fullness:
            break
        sizes[min(fullness)[1]].pop(0)
    return {model: of_model[0] for model, of_model in sizes.items()}
