"""The first solver: the hottest model first onto the unit with the most free memory, and what sits well stays."""

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile

from placement.estimation.memory import bytes_for_models, pool_blocks_beside, resident_bytes_on, runs_on
from placement.estimation.problem_arrays import Estimator
from placement.estimation.quotas import QuotaClaim, QuotaShortage, initial_quotas, shortage_of
from placement.estimation.refusal import has_no_place, refusal
from placement.launch_limits import LaunchLimits
from placement.plan import ModelPlacement, Plan, UnitCapacity, UnitPlan
from placement.problem import PlacementModel
from placement.solvers.entry import IsTimeUp, SolverEntry
from profiler.native_refusal import NativeDevice

_Shape = tuple[int, LaunchLimits, NativeDevice | None]
"""What of a unit decides whether a model runs there and how much memory it takes: GPUs, what a launch holds, engine."""
_Homes = Mapping[str, frozenset[str]]
"""Units by model."""


class MemoryGreedySolver:
    """Knows memory and nothing of speed: it uses every replica that `max_replicas` allows and memory admits.

    A replica leaves a unit where it still fits only if that serves more demand. Its own plan, given back as `current`,
    moves nothing.
    """

    def solve(self, units: Sequence[UnitCapacity], models: Sequence[PlacementModel], current: Plan | None) -> Plan:
        homes = {} if current is None else {m.model: frozenset(current.units_of(m.model)) for m in models}
        best = _best_packing(units, models, homes)
        while (better := _best_packing(units, models, best.homes())).unserved() < best.unserved():
            best = better
        return best.plan()


def _make(estimator: Estimator, is_time_up: IsTimeUp) -> MemoryGreedySolver:
    return MemoryGreedySolver()


SOLVER = SolverEntry(
    name="memory_greedy",
    rule="the hottest model first, onto the unit with the most free memory; every replica that may be; knows nothing "
    "of speed",
    make=_make,
)


def _best_packing(units: Sequence[UnitCapacity], models: Sequence[PlacementModel], current: _Homes) -> "_Packing":
    """By popularity, by size, and each again with leave to evict surplus replicas; the first of equally good ones."""
    by_popularity = sorted(models, key=lambda m: (-m.demand.rate_per_s, m.model))
    by_size = sorted(models, key=lambda m: (-m.spec.weight_bytes, m.model))
    packings = [
        _Packing(units, order, current, may_evict=may_evict)
        for may_evict in (False, True)
        for order in (by_popularity, by_size)
    ]
    return min(packings, key=_Packing.unserved)


def _needed_bytes(units: Sequence[UnitCapacity], models: Sequence[PlacementModel]) -> Mapping[tuple[str, _Shape], int]:
    """By model and shape of a unit, without those that the model does not run on."""
    shapes = {_shape(unit): unit for unit in units}
    return {
        (m.model, shape): resident_bytes_on(unit, m)
        for m in models
        for shape, unit in shapes.items()
        if runs_on(m.spec, unit.num_gpus, unit.native_on)
    }


def _shape(unit: UnitCapacity) -> _Shape:
    return unit.num_gpus, unit.launch_limits, unit.native_on


class _Packing:
    """Units being filled, with models in order of precedence."""

    def __init__(
        self, units: Sequence[UnitCapacity], models: Sequence[PlacementModel], current: _Homes, *, may_evict: bool
    ) -> None:
        self._units = {u.unit_id: u for u in sorted(units, key=lambda u: u.unit_id)}
        self._models = {m.model: m for m in models}
        self._bytes = _needed_bytes(units, models)
        self._least_bytes: dict[str, int] = {}  # of a model, on whatever unit; without those that run on none
        for (name, _), needed_bytes in self._bytes.items():
            self._least_bytes[name] = min(needed_bytes, self._least_bytes.get(name, needed_bytes))
        self._may_sleep = {name for unit in units for name in unit.asleep}
        self._held: dict[str, list[str]] = {unit_id: [] for unit_id in self._units}
        self._free_bytes = {unit_id: bytes_for_models(unit) for unit_id, unit in self._units.items()}
        self._by_free_memory = sorted((-free_bytes, unit_id) for unit_id, free_bytes in self._free_bytes.items())
        self._replicas = dict.fromkeys(self._models, 0)
        for model in models:
            self._keep(model, current.get(model.model, frozenset()))
        self._fill(lambda m: min(1, m.min_replicas), may_evict=may_evict)
        self._fill(lambda m: m.min_replicas, may_evict=may_evict)
        self._fill(lambda m: m.max_replicas, may_evict=False)

    def unserved(self) -> tuple[float, int, int]:
        """Demand of models without a replica, their number, and replicas that are missing anywhere; less is better."""
        absent = [m for m in self._models.values() if m.min_replicas and not self._replicas[m.model]]
        missing = sum(max(0, m.min_replicas - self._replicas[m.model]) for m in self._models.values())
        return math.fsum(m.demand.rate_per_s for m in absent), len(absent), missing

    def homes(self) -> _Homes:
        homes = {model: set[str]() for model in self._models}
        for unit_id, held in self._held.items():
            for model in held:
                homes[model].add(unit_id)
        return {model: frozenset(units) for model, units in homes.items()}

    def plan(self) -> Plan:
        return Plan(units=tuple(self._unit_plans()), unplaced=dict(sorted(self._refusals())))

    def _keep(self, model: PlacementModel, homes: frozenset[str]) -> None:
        for unit_id in sorted(homes & self._units.keys()):
            if self._replicas[model.model] < model.max_replicas and self._fits(unit_id, model):
                self._put(unit_id, model.model)

    def _fill(self, wanted: Callable[[PlacementModel], int], *, may_evict: bool) -> None:
        """Gives every model up to `wanted` replicas, a first one to each before a second to any."""
        hopeful = list(self._models.values())
        for replica in range(1, max((wanted(m) for m in hopeful), default=0) + 1):
            for model in [m for m in hopeful if self._replicas[m.model] < replica <= wanted(m)]:
                unit_id = self._roomiest(model) or (self._evict_for(model, wanted) if may_evict else None)
                if unit_id is not None:
                    self._put(unit_id, model.model)
                else:
                    hopeful.remove(model)  # what a later eviction leaves over, the next pass finds
            if not hopeful:
                return

    def _put(self, unit_id: str, model: str) -> None:
        self._held[unit_id].append(model)
        self._change_free(unit_id, -self._bytes[model, _shape(self._units[unit_id])])
        self._replicas[model] += 1

    def _take(self, unit_id: str, model: str) -> None:
        self._held[unit_id].remove(model)
        self._change_free(unit_id, self._bytes[model, _shape(self._units[unit_id])])
        self._replicas[model] -= 1

    def _change_free(self, unit_id: str, num_bytes: int) -> None:
        """Keeps the units in the order of their free memory."""
        del self._by_free_memory[bisect_left(self._by_free_memory, (-self._free_bytes[unit_id], unit_id))]
        self._free_bytes[unit_id] += num_bytes
        insort(self._by_free_memory, (-self._free_bytes[unit_id], unit_id))

    def _roomiest(self, model: PlacementModel) -> str | None:
        """Where its weights sleep before others."""
        units = self._with_bytes(self._least_bytes.get(model.model, math.inf))
        if model.model in self._may_sleep:
            units = iter(sorted(units, key=lambda u: self._units[u].asleep.get(model.model, math.inf)))
        return next((u for u in units if self._fits(u, model)), None)

    def _with_bytes(self, least_bytes: float) -> Iterator[str]:
        """Yields units with so much free memory, those with the most first."""
        return (unit_id for _, unit_id in takewhile(lambda place: -place[0] >= least_bytes, self._by_free_memory))

    def _evict_for(self, model: PlacementModel, wanted: Callable[[PlacementModel], int]) -> str | None:
        """Takes replicas beyond what their models want now off one unit, those of least precedence first."""
        precedence = list(self._models)
        for _, unit_id in tuple(self._by_free_memory):
            if model.model in self._held[unit_id]:
                continue
            surplus = [m for m in self._held[unit_id] if self._replicas[m] > wanted(self._models[m])]
            shape = _shape(self._units[unit_id])
            freed_bytes = self._free_bytes[unit_id] + sum(self._bytes[m, shape] for m in surplus)
            if not surplus or freed_bytes < self._bytes.get((model.model, shape), math.inf):
                continue
            victims = sorted(surplus, key=precedence.index, reverse=True)
            for victim in victims:
                self._take(unit_id, victim)
                if self._fits(unit_id, model):
                    return unit_id
            for victim in victims:
                self._put(unit_id, victim)
        return None

    def _fits(self, unit_id: str, model: PlacementModel) -> bool:
        needed_bytes = self._bytes.get((model.model, _shape(self._units[unit_id])))
        if model.model in self._held[unit_id] or needed_bytes is None or needed_bytes > self._free_bytes[unit_id]:
            return False
        if has_no_place(self._units[unit_id], self._held[unit_id]):
            return False
        unit, held = self._units[unit_id], (*self._held[unit_id], model.model)
        shortage = shortage_of(
            [self._claim(m, unit) for m in held],
            total_blocks=pool_blocks_beside(unit, sum(self._bytes[m, _shape(unit)] for m in held)),
        )
        return shortage is None

    def _quotas(self, unit_id: str, models: Sequence[str]) -> Mapping[str, int] | QuotaShortage:
        unit = self._units[unit_id]
        held_bytes = sum(self._bytes[m, _shape(unit)] for m in models)
        return initial_quotas(
            [self._claim(m, unit) for m in models],
            total_blocks=pool_blocks_beside(unit, held_bytes),
        )

    def _claim(self, name: str, unit: UnitCapacity) -> QuotaClaim:
        claim = QuotaClaim.of(self._models[name], unit.block_bytes, unit.num_gpus)
        return claim.at(claim.rate_per_s / max(1, self._replicas[name]))

    def _unit_plans(self) -> Iterator[UnitPlan]:
        for unit_id, held in self._held.items():
            quotas = self._quotas(unit_id, held)
            assert not isinstance(quotas, QuotaShortage), "floors do not depend on how demand is split over replicas"
            placements = tuple(ModelPlacement(model=m, quota_blocks=quotas[m]) for m in sorted(held))
            yield UnitPlan(unit_id=unit_id, models=placements)

    def _refusals(self) -> Iterator[tuple[str, str]]:
        for model in self._models.values():
            placed = self._replicas[model.model]
            if placed < model.min_replicas:
                others = {
                    unit: [self._models[m] for m in held]
                    for unit, held in self._held.items()
                    if model.model not in held
                }
                why = refusal(model, [(self._units[u], held) for u, held in others.items()])
                prefix = f"{placed} of {model.min_replicas} replicas placed: " if placed else ""
                yield model.model, prefix + why
