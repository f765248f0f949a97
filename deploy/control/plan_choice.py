"""Defines what the fleet should hold: what is planned for, and the goal that an answer to it makes."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from placement.estimation.memory import bytes_for_models, resident_bytes_on
from placement.plan import ModelPlacement, Plan, UnitCapacity, UnitPlan
from placement.plan_steps import Fits
from placement.problem import PlacementModel

_SAME_DEMAND = 0.05
_SAME_RATE_PER_S = 0.005
_QUOTA_SHIFT = 0.25  # of a quota: less is left to the units, which lend each other's blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceTurn:
    """`waiting` models get places, who has waited longest first; `yielding` ones give up theirs, in this order, as far
    as that makes room.
    """

    waiting: tuple[str, ...] = ()
    yielding: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Holds what is planned for. Of models that may be scaled to zero, `guests` have a place, used longest ago first,
    and `latecomers` have none, in order those that have waited longest, then those that are asked for most: where there
    is not room for all, a latecomer gets one only by `turn`. `sleepers` are guests that nobody has used lately. Models
    of `unknown` shape are not planned for, and stay where they are.
    """

    units: tuple[UnitCapacity, ...]
    models: tuple[PlacementModel, ...]
    sleepers: tuple[str, ...] = ()
    guests: tuple[str, ...] = ()
    latecomers: tuple[str, ...] = ()
    turn: PlaceTurn = field(default_factory=PlaceTurn)
    unknown: frozenset[str] = frozenset()

    def resembles(self, other: "Needs") -> bool:
        """A plan for one would be a plan for the other: demand differs by no more than chance makes it."""
        mine, others = ((n.units, n.sleepers, set(n.latecomers), n.turn) for n in (self, other))
        return mine == others and are_like(self.models, other.models)

    def memory_test(self) -> Fits:
        """Builds a test of which models fit a unit, by memory beside the pool. Models that are not planned for are on
        units whose capacity is without them.
        """
        units = {u.unit_id: u for u in self.units}
        shapes = {(u.num_gpus, u.launch_limits): u for u in self.units}
        sizes = {
            (m.model, unit.num_gpus, unit.launch_limits): resident_bytes_on(unit, m)
            for m in self.models
            for unit in shapes.values()
        }

        def fits(unit_id: str, models: frozenset[str]) -> bool:
            unit = units.get(unit_id)
            if unit is None or (unit.max_models is not None and len(models) > unit.max_models):
                return False
            needed = (sizes.get((m, unit.num_gpus, unit.launch_limits), 0) for m in models)
            return sum(needed) <= bytes_for_models(unit)

        return fits

    def holds(self, plan: Plan, fits: Fits) -> bool:
        """Every unit's models fit; those that are not planned for count nothing."""
        known = {m.model for m in self.models}
        planned = ((u.unit_id, frozenset(p.model for p in u.models) & known) for u in plan.units)
        return all(fits(unit_id, models) for unit_id, models in planned if models)

    def homeless(self, plan: Plan, *, but: tuple[str, ...] = ()) -> int:
        """Models that must have a replica and have none."""
        placed = plan.placed.union(but)
        return sum(m.min_replicas > 0 and m.model not in placed for m in self.models)


def are_like(some: Sequence[PlacementModel], others: Sequence[PlacementModel]) -> bool:
    """Demand differs by no more than chance makes it."""
    return len(some) == len(others) and all(map(_is_like, some, others))


def _is_like(one: PlacementModel, other: PlacementModel) -> bool:
    now, then = one.demand, other.demand
    figures = [
        (now.rate_per_s, then.rate_per_s, _SAME_RATE_PER_S),
        (now.prompt_tokens, then.prompt_tokens, 1.0),
        (now.output_tokens, then.output_tokens, 1.0),
        (now.arrival_cv, then.arrival_cv, 0.0),
    ]
    is_close = all(math.isclose(a, b, rel_tol=_SAME_DEMAND, abs_tol=nothing) for a, b, nothing in figures)
    return is_close and one.target == other.target and replace(one, demand=then) == other


def goal_of(found: Plan, kept: Mapping[str, tuple[ModelPlacement, ...]], unit_ids: Iterable[str]) -> Plan:
    """Returns what was found, for the units that stay, and what they keep whatever was found. Both may name a model: an
    answer may be older than the reason to keep it.
    """
    placed = {u.unit_id: u.models for u in found.units}
    named = ((i, {p.model: p for p in (*placed.get(i, ()), *kept.get(i, ()))}) for i in unit_ids)
    return replace(found, units=tuple(UnitPlan(unit_id=i, models=tuple(models.values())) for i, models in named))


def same_places(one: Plan, other: Plan) -> bool:
    return _places(one) == _places(other)


def quotas_shifted(one: Plan, other: Plan) -> bool:
    """Returns whether two plans with the same models on each unit differ in their quotas."""
    quotas = {(u.unit_id, p.model): p.quota_blocks for u in other.units for p in u.models}
    return any(
        abs(quotas[u.unit_id, p.model] - p.quota_blocks) > _QUOTA_SHIFT * p.quota_blocks
        for u in one.units
        for p in u.models
    )


def _places(plan: Plan) -> set[tuple[str, str]]:
    return {(u.unit_id, p.model) for u in plan.units for p in u.models}
