"""Finds how many nodes each pool should have: the cheapest for which the planner predicts that the target is met."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from placement.estimation.plan_estimate import estimate
from placement.estimation.problem_arrays import Estimator, make_instance
from placement.plan import UnitCapacity
from placement.problem import PlacementModel, Solver
from placement.scaling.elastic_pool import Ceilings, ElasticPool, FleetSize, HeldNodes, SizeLimits, cost_per_hour
from placement.scaling.predicted_attainment import predicted_attainment

_MOST_FOR_ONE = 4  # nodes of a cheaper pool that are tried in the place of one of a dearer pool
_MOST_IDLE = 3  # nodes in a row that help nothing: then something else is in the way

_Counts = tuple[int, ...]
"""Nodes, in the pools' order."""


@dataclass(frozen=True, slots=True)
class _Judged:
    attainment: float
    unplaced: int


@dataclass(slots=True, eq=False)
class FleetSizing:
    """Sizes pools, starting from the nodes that they have. A search that runs out of time ends with the best that it
    has.
    """

    pools: Sequence[ElasticPool]
    models: Sequence[PlacementModel]
    limits: SizeLimits
    solver: Solver
    estimator: Estimator
    is_time_up: Callable[[], bool] = lambda: False
    _judged: dict[_Counts, _Judged] = field(default_factory=dict)
    _judged_offers: dict[Hashable, _Judged] = field(default_factory=dict)
    _hopeless: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        """Finds the models that no pool serves in time, whatever its size. One that some pools do is not among them."""
        instance = make_instance([u for p in self.pools for u in p.units(1)], self.models, self.estimator)
        self._hopeless = frozenset(instance.models[i].model for i in instance.hopeless)

    def find(self) -> FleetSize:
        """Grows one node at a time by what helps most for its cost, then leaves out what is not needed, then tries
        cheaper nodes in the place of dearer ones.
        """
        present = tuple(min(max(len(p.nodes), p.least_nodes), p.most_nodes) for p in self.pools)
        counts = self._affordable(present)
        idle = 0
        while not self._is_enough(counts) and idle < _MOST_IDLE and not self.is_time_up():
            larger = list(self._one_more(counts))
            if not larger:
                break
            before, counts = counts, self._best_of(larger, counts)
            idle = 0 if self._gain_per_cost(before, counts) > (0, 0) else idle + 1
        counts = self._exchanged(self._shrunk(counts))
        return FleetSize(
            nodes=self._by_name(counts),
            attainment=self._judge(counts).attainment,
            cost_per_hour=self._cost(counts),
            is_enough=self._is_enough(counts) and self._is_affordable(counts),
            left_out=tuple(sorted(self._hopeless)),
            is_cut=self.is_time_up(),
        )

    def _best_of(self, larger: Sequence[_Counts], counts: _Counts) -> _Counts:
        return max(larger, key=lambda c: (self._gain_per_cost(counts, c), -self._cost(c), c))

    def _affordable(self, counts: _Counts) -> _Counts:
        """Leaves out the dearest nodes while all cost more than they may, but none that must be there."""
        while not self._is_affordable(counts):
            smaller = list(self._one_less(counts))
            if not smaller:
                break
            counts = min(smaller, key=lambda c: (self._cost(c), c))
        return counts

    def _shrunk(self, counts: _Counts) -> _Counts:
        while not self.is_time_up():
            enough = [c for c in self._one_less(counts) if self._may_take(c, counts)]
            if not enough:
                return counts
            counts = min(enough, key=lambda c: (self._cost(c), -self._judge(c).attainment, c))
        return counts

    def _may_take(self, fewer: _Counts, counts: _Counts) -> bool:
        """Where no size is enough, nodes that help nothing are left out all the same."""
        if self._is_enough(fewer):
            return True
        if self._is_enough(counts):
            return False
        before, after = self._judge(counts), self._judge(fewer)
        return (after.unplaced, -after.attainment) <= (before.unplaced, -before.attainment)

    def _exchanged(self, counts: _Counts) -> _Counts:
        better = True
        while better and not self.is_time_up():
            better = False
            for found in sorted(self._exchanges(counts), key=self._cost):
                if self._is_enough(found):
                    counts, better = self._shrunk(found), True
                    break
        return counts

    def _exchanges(self, counts: _Counts) -> Iterator[_Counts]:
        """One node less of one pool and some more of another, where that costs less."""
        for dear, pool in enumerate(self.pools):
            if counts[dear] <= pool.least_nodes:
                continue
            for cheap, other in enumerate(self.pools):
                for more in range(1, _MOST_FOR_ONE + 1):
                    fits = cheap != dear and counts[cheap] + more <= other.most_nodes
                    if fits and more * other.cost_per_hour < pool.cost_per_hour:
                        exchanged = _with(_with(counts, dear, -1), cheap, more)
                        if self._is_affordable(exchanged):
                            yield exchanged

    def _one_more(self, counts: _Counts) -> Iterator[_Counts]:
        for i, pool in enumerate(self.pools):
            more = _with(counts, i, 1)
            if more[i] <= pool.most_nodes and self._is_affordable(more):
                yield more

    def _one_less(self, counts: _Counts) -> Iterator[_Counts]:
        for i, pool in enumerate(self.pools):
            if counts[i] > pool.least_nodes:
                yield _with(counts, i, -1)

    def _gain_per_cost(self, counts: _Counts, more: _Counts) -> tuple[float, float]:
        """A model that has a place at last comes before shares of requests."""
        before, after = self._judge(counts), self._judge(more)
        cost = max(1e-9, self._cost(more) - self._cost(counts))
        gained = after.attainment - before.attainment
        return (before.unplaced - after.unplaced) / cost, round(gained / cost, 6)

    def _is_enough(self, counts: _Counts) -> bool:
        judged = self._judge(counts)
        return judged.attainment >= self.limits.target_attainment and not judged.unplaced

    def _is_affordable(self, counts: _Counts) -> bool:
        ceilings = Ceilings(max_cost_per_hour=self.limits.max_cost_per_hour, max_gpus=self.limits.max_gpus)
        return ceilings.admit(
            HeldNodes(nodes=n, gpus=p.gpus_per_node, cost_per_hour=p.cost_per_hour)
            for p, n in zip(self.pools, counts, strict=True)
        )

    def _judge(self, counts: _Counts) -> _Judged:
        if counts not in self._judged:
            units = [u for p, n in zip(self.pools, counts, strict=True) for u in p.units(n)]
            offer = _offer(units)
            if offer not in self._judged_offers:
                self._judged_offers[offer] = self._judge_units(units)
            self._judged[counts] = self._judged_offers[offer]
        return self._judged[counts]

    def _judge_units(self, units: Sequence[UnitCapacity]) -> _Judged:
        plan = self.solver.solve(units, self.models, None)
        found = estimate(units, self.models, plan, self.estimator)
        demands = {m.model: m.demand for m in self.models}
        attainment = predicted_attainment(found, demands, uncertainty=self.limits.uncertainty, left_out=self._hopeless)
        return _Judged(round(attainment, 6), len(plan.unplaced))

    def _cost(self, counts: _Counts) -> float:
        return cost_per_hour(self.pools, self._by_name(counts))

    def _by_name(self, counts: _Counts) -> Mapping[str, int]:
        return {p.name: n for p, n in zip(self.pools, counts, strict=True)}


def _offer(units: Sequence[UnitCapacity]) -> Hashable:
    """Returns what a solver sees of units but their names: those of a spot pool are often what those of another are."""
    ordered = sorted(units, key=lambda unit: unit.unit_id)
    numbers = {node: number for number, node in enumerate(dict.fromkeys(unit.node for unit in ordered))}
    return tuple(
        (replace(u, unit_id="", pool="", node=""), u.node and numbers[u.node], tuple(sorted(u.asleep.items())))
        for u in ordered
    )


def _with(counts: _Counts, index: int, change: int) -> _Counts:
    return (*counts[:index], counts[index] + change, *counts[index + 1 :])


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSizeQuestion:
    """`models` with the demand that is expected by the time at which nodes asked for now would serve."""

    pools: tuple[ElasticPool, ...]
    models: tuple[PlacementModel, ...]
    limits: SizeLimits

    def answer(self, solver: Solver, estimator: Estimator, is_time_up: Callable[[], bool]) -> FleetSize:
        sizing = FleetSizing(
            pools=self.pools,
            models=self.models,
            limits=self.limits,
            solver=solver,
            estimator=estimator,
            is_time_up=is_time_up,
        )
        return sizing.find()
