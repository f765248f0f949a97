"""Sizes KV pools that have no size yet: what the models that a plan puts beside them leave of the memory.

All units of a pool that are alike get the same size, that of the one with the most weights: the estimate then has few
kinds of units to tell apart, and models may change places. Where it costs next to nothing, room is kept for one model
more, so that a plan for another demand can load before it drains.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from placement.estimation.memory import holds_weights, kept_prefill_bytes, resident_bytes_on, runs_on
from placement.estimation.plan_estimate import FleetEstimate, estimate
from placement.estimation.problem_arrays import Estimator
from placement.plan import Plan, UnitCapacity
from placement.problem import PlacementModel
from placement.solvers.search import SearchSolver

_ROOMY = 2.0  # headroom that a smaller pool must leave, unless there was less

_Alike = tuple[str, int]
"""Pool and GPUs."""


def size_pools(
    units: Sequence[UnitCapacity],
    models: Sequence[PlacementModel],
    estimator: Estimator,
    is_time_up: Callable[[], bool] = lambda: False,
) -> tuple[UnitCapacity, ...]:
    """Returns the same units, each with a pool of fixed size. One that joins its like gets their size, unless a model
    then has no place anywhere.
    """
    sizes = {_alike(u): u.total_blocks for u in units if not u.sizes_pool}
    kept, units = units, [_without_kept_prefills(u, models) if u.sizes_pool else u for u in units]
    asked = [u for u in units if u.sizes_pool and _alike(u) not in sizes]
    if not asked and _leave_one_out([_sized(u, sizes[_alike(u)]) if u.sizes_pool else u for u in units], models):
        asked = [u for u in units if u.sizes_pool]
    if asked:
        plan = SearchSolver(estimator=estimator, is_time_up=is_time_up).solve(units, models, None)
        sizes |= _sizes(asked, models, plan, estimator)
    return tuple(_sized(u, sizes[_alike(u)]) if u.sizes_pool else u for u in kept)


def _leave_one_out(units: Sequence[UnitCapacity], models: Sequence[PlacementModel]) -> bool:
    return not all(
        any(holds_weights(u, [m]) and runs_on(m.spec, u.num_gpus, u.native_on) for u in units) for m in models
    )


def _sizes(
    units: Sequence[UnitCapacity], models: Sequence[PlacementModel], plan: Plan, estimator: Estimator
) -> Mapping[_Alike, int]:
    by_name = {m.model: m for m in models}
    groups: defaultdict[_Alike, list[UnitCapacity]] = defaultdict(list)
    for unit in units:
        groups[_alike(unit)].append(unit)

    def held(unit: UnitCapacity) -> int:
        return sum(resident_bytes_on(unit, by_name[p.model]) for p in plan.models_of(unit.unit_id))

    left = {key: min(u.memory_bytes for u in group) - max(map(held, group)) for key, group in groups.items()}
    spare = dict.fromkeys(groups, 0)

    def blocks() -> dict[_Alike, int]:
        return {key: max(1, left[key] - spare[key]) // group[0].block_bytes for key, group in groups.items()}

    def judged() -> FleetEstimate:
        sizes = blocks()
        return estimate([_sized(u, sizes[_alike(u)]) for u in units], models, plan, estimator)

    full = judged()
    for key, group in groups.items():
        for size in _sizes_of_others(group, models, plan):
            spare[key] = min(size, left[key])
            if _is_as_good(judged(), full):
                break
            spare[key] = 0
    return blocks()


def _sizes_of_others(group: Sequence[UnitCapacity], models: Sequence[PlacementModel], plan: Plan) -> Sequence[int]:
    """Resident bytes of the largest and of the smallest model that a unit may take beside its own."""
    unit = group[0]
    if unit.max_models is not None:
        return ()
    everywhere = {m.model for m in models if all(u.unit_id in plan.units_of(m.model) for u in group)}
    others = [m for m in models if m.model not in everywhere and runs_on(m.spec, unit.num_gpus, unit.native_on)]
    sizes = sorted(resident_bytes_on(unit, m) for m in others)
    return (sizes[-1], sizes[0]) if sizes else ()


def _is_as_good(found: FleetEstimate, full: FleetEstimate) -> bool:
    least, was = (min((u.headroom for u in e.units if u.replicas), default=_ROOMY) for e in (found, full))
    return found.objective()[:2] >= full.objective()[:2] and least >= min(_ROOMY, was)


def with_pools_of(plan: Plan, units: Sequence[UnitCapacity]) -> tuple[UnitCapacity, ...]:
    """Units that were laid out, with the blocks that the plan gives away; one without models has no size yet."""

    def given(unit: UnitCapacity) -> int:
        return sum(p.quota_blocks for p in plan.models_of(unit.unit_id)) or unit.total_blocks

    return tuple(replace(u, total_blocks=given(u)) if u.sizes_pool else u for u in units)


def _without_kept_prefills(unit: UnitCapacity, models: Sequence[PlacementModel]) -> UnitCapacity:
    """An engine of one model is SGLang, which sees to its own memory."""
    if unit.max_models is not None or unit.device is None:
        return unit
    kept = unit.num_gpus * kept_prefill_bytes(models, unit.launch_limits)
    memory_bytes = max(0, unit.memory_bytes - kept)
    return replace(unit, memory_bytes=memory_bytes, total_blocks=memory_bytes // unit.block_bytes)


def _alike(unit: UnitCapacity) -> _Alike:
    return unit.pool, unit.num_gpus


def _sized(unit: UnitCapacity, total_blocks: int) -> UnitCapacity:
    return replace(unit, total_blocks=min(total_blocks, unit.memory_bytes // unit.block_bytes), sizes_pool=False)
