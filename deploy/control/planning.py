"""What the fleet should hold: a solver's answer, and whether it is worth moving for."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from placement.diff import Fits
from placement.estimate import estimate
from placement.instance import Estimator
from placement.memory import bytes_for_models, resident_bytes
from placement.plan import Plan, UnitCapacity
from placement.solvers.base import PlacementModel, Solver

_QUOTA_SHIFT = 0.25  # of a quota: less is left to the units, which lend each other's blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What is planned for. `sleepers` may give up their places to models that have none, in this order."""

    units: tuple[UnitCapacity, ...]
    models: tuple[PlacementModel, ...]
    sleepers: tuple[str, ...] = ()

    def memory_test(self) -> Fits:
        """By memory beside the pool. Models that are not planned for are on units whose capacity is without them."""
        units = {u.unit_id: u for u in self.units}
        sizes = {
            (m.model, gpus): resident_bytes(m.spec, gpus)
            for m in self.models
            for gpus in {u.num_gpus for u in self.units}
        }

        def fits(unit_id: str, models: frozenset[str]) -> bool:
            unit = units.get(unit_id)
            if unit is None or (unit.max_models is not None and len(models) > unit.max_models):
                return False
            return sum(sizes.get((m, unit.num_gpus), 0) for m in models) <= bytes_for_models(unit)

        return fits

    def holds(self, plan: Plan, fits: Fits) -> bool:
        """Every unit's models fit; those that are not planned for count nothing."""
        known = {m.model for m in self.models}
        planned = ((u.unit_id, frozenset(p.model for p in u.models) & known) for u in plan.units)
        return all(fits(unit_id, models) for unit_id, models in planned if models)

    def homeless(self, plan: Plan, *, but: tuple[str, ...] = ()) -> int:
        """Models that must have a replica and have none."""
        return sum(m.min_replicas > 0 and m.model not in but and not plan.units_of(m.model) for m in self.models)


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """`put_to_sleep`: models that the plan leaves out, though they could stay if there were room."""

    plan: Plan
    put_to_sleep: tuple[str, ...] = ()


Appraise = Callable[[Needs, Plan], float]
"""The share of demand that a plan serves, from 0 to 1."""


def solve(solver: Solver, needs: Needs, current: Plan | None) -> Solution:
    plan = solver.solve(needs.units, needs.models, current)
    gone: list[str] = []
    for sleeper in needs.sleepers:
        if not needs.homeless(plan):
            break
        gone.append(sleeper)
        needs = replace(needs, models=tuple(m for m in needs.models if m.model != sleeper))
        plan = solver.solve(needs.units, needs.models, current)
    return Solution(plan=plan, put_to_sleep=tuple(gone))


def served_share(needs: Needs, plan: Plan) -> float:
    """By the throughput estimate, within SLOs; on units of unknown speed a model with a replica counts as served."""
    return estimate(needs.units, needs.models, plan, Estimator()).served_share


def same_places(one: Plan, other: Plan) -> bool:
    return _places(one) == _places(other)


def quotas_shifted(one: Plan, other: Plan) -> bool:
    """Of two plans with the same places."""
    quotas = {(u.unit_id, p.model): p.quota_blocks for u in other.units for p in u.models}
    return any(
        abs(quotas[u.unit_id, p.model] - p.quota_blocks) > _QUOTA_SHIFT * p.quota_blocks
        for u in one.units
        for p in u.models
    )


def _places(plan: Plan) -> set[tuple[str, str]]:
    return {(u.unit_id, p.model) for u in plan.units for p in u.models}
