"""The oracle for small fleets: every plan there is, up to units that are alike."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from placement.errors import FleetTooLarge
from placement.estimation.plan_estimate import estimate_with
from placement.estimation.problem_arrays import Estimator, Instance, make_instance
from placement.nodes import FleetPlan, NodePool, openings_of
from placement.packing.layout import plan_of_packing, units_of_packing
from placement.packing.packing import Packing
from placement.plan import Plan, UnitCapacity
from placement.problem import PlacementModel
from placement.solvers.entry import IsTimeUp, SolverEntry
from placement.solvers.muxserve import mesh_groups

_Merit = tuple[int, float, float, int]
_EVEN_SHARE_PER_S = 1e-9  # memory is all that matters while plans are enumerated


@dataclass(frozen=True, slots=True, kw_only=True)
class ExhaustiveSolver:
    """Raises FleetTooLarge beyond `most_plans`, of all divisions of the nodes together, or when time is up."""

    estimator: Estimator = field(default_factory=Estimator)
    most_plans: int = 50_000
    is_time_up: IsTimeUp = lambda: False

    def solve(self, units: Sequence[UnitCapacity], models: Sequence[PlacementModel], current: Plan | None) -> Plan:
        """`current` is not looked at."""
        ordered = sorted(units, key=lambda u: u.unit_id)
        instance = make_instance(ordered, models, self.estimator)
        _, plan = self._best(instance, Packing.of_units(instance, ordered), ordered, count())
        return plan

    def lay_out(self, pools: Sequence[NodePool], models: Sequence[PlacementModel]) -> FleetPlan:
        shapes = openings_of(pools)
        instance = make_instance([unit for _, unit in shapes], models, self.estimator)
        kinds = {(pool, unit.num_gpus): instance.kind_of(unit) for pool, unit in shapes}
        options, looked_at = [], count()
        for meshes in mesh_groups(pools):
            packing = Packing.of_nodes(instance, pools)
            for pool, node, num_gpus in meshes:
                packing.open(kinds[pool, num_gpus], (pool, node))
            units = tuple(units_of_packing(packing, pools).values())
            objective, plan = self._best(instance, Packing.of_units(instance, units), units, looked_at)
            options.append((objective, FleetPlan(units=units, plan=plan)))
        return max(options, key=lambda option: option[0])[1]

    def _best(
        self, instance: Instance, packing: Packing, units: Sequence[UnitCapacity], looked_at: Iterator[int]
    ) -> tuple[_Merit, Plan]:
        best: tuple[_Merit, Plan] | None = None
        for filled in _fillings(packing, 0):
            before = next(looked_at)
            if before >= self.most_plans or self.is_time_up():
                raise FleetTooLarge(solver="exhaustive", limit=before)
            plan = plan_of_packing(
                filled, dict(enumerate(units)), rule="another plan is better; lower the replicas it must have"
            )
            objective = (-len(plan.unplaced), *estimate_with(instance, units, plan).objective())
            if best is None or objective > best[0]:
                best = (objective, plan)
        assert best is not None, "the empty plan is one"
        return best


def _make(estimator: Estimator, is_time_up: IsTimeUp) -> ExhaustiveSolver:
    return ExhaustiveSolver(estimator=estimator, is_time_up=is_time_up)


SOLVER = SolverEntry(
    name="exhaustive",
    rule="every plan there is; for a handful of GPUs (`--solver` only)",
    make=_make,
    make_for_nodes=_make,
    online=False,
)


def _fillings(packing: Packing, model: int) -> Iterator[Packing]:
    """Gives model `model` and those after it every set of homes, in place."""
    if model == len(packing.instance.models):
        yield packing
        return
    for homes in _sets_of_homes(packing, model):
        for unit in homes:
            packing.put(unit, model, _EVEN_SHARE_PER_S)
        yield from _fillings(packing, model + 1)
        for unit in homes:
            packing.take(unit, model)


def _sets_of_homes(packing: Packing, model: int) -> Iterator[tuple[int, ...]]:
    """None only if none has room. Of units of one kind that hold the same models, the first ones."""
    alike: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for unit in packing.open_units():
        costs = packing.costs_of(unit)
        sums = packing.sums[unit] + costs.sums(model, _EVEN_SHARE_PER_S)
        if bool(costs.runs[model]) and bool(np.all(costs.holds(sums))):
            alike.setdefault((int(packing.kind[unit]), tuple(sorted(packing.parts[unit]))), []).append(unit)
    groups = [alike[key] for key in sorted(alike)]
    wanted = packing.instance.models[model]
    yielded = False
    for counts in _counts([len(group) for group in groups], wanted.max_replicas):
        if sum(counts) >= 1:
            yielded = True
            yield tuple(unit for group, taken in zip(groups, counts, strict=True) for unit in group[:taken])
    if not yielded or wanted.min_replicas == 0:
        yield ()


def _counts(sizes: Sequence[int], most: int) -> Iterator[tuple[int, ...]]:
    """As many of each group as it has, no more than `most` in all."""
    if not sizes:
        yield ()
        return
    for taken in range(min(sizes[0], most) + 1):
        for others in _counts(sizes[1:], most - taken):
            yield (taken, *others)
