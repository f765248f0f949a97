"""MuxServe's placement as published: Algorithm 1 (enumeration-based greedy) over the candidates of Algorithm 2.

One mesh per model, tensor parallelism over the whole mesh, no replicas. Different from the release: groups of meshes
are enumerated once per multiset of sizes, meshes are told apart by identity, and F is the estimate of throughput.py.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from placement.estimation.problem_arrays import Estimator, Instance, make_instance
from placement.estimation.throughput import LOAD
from placement.nodes import FleetPlan, NodePool, openings_of
from placement.packing.layout import carve, plan_of_packing
from placement.packing.packing import Packing
from placement.packing.packing_objective import key_of
from placement.plan import Plan, UnitCapacity
from placement.problem import PlacementModel
from placement.solvers.entry import IsTimeUp, SolverEntry

_SM_SHARES = tuple(tenths / 10 for tenths in range(1, 11))
_RULE = "solver muxserve places one replica of each model; use solver search"
Meshes = tuple[tuple[int, int, int], ...]
"""(pool, node, GPUs) of each mesh."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MuxServeSolver:
    """`is_time_up` ends the enumeration of mesh groups early: their number grows with the cube of the nodes."""

    estimator: Estimator = field(default_factory=Estimator)
    is_time_up: Callable[[], bool] = lambda: False

    def solve(self, units: Sequence[UnitCapacity], models: Sequence[PlacementModel], current: Plan | None) -> Plan:
        """The meshes are given: Algorithm 1 with one mesh group. `current` is not looked at."""
        ordered = sorted(units, key=lambda u: u.unit_id)
        instance = make_instance(ordered, models, self.estimator)
        packing = _greedy(instance, Packing.of_units(instance, ordered), parallel_candidates(instance))
        return plan_of_packing(packing, dict(enumerate(ordered)), rule=_RULE)

    def lay_out(self, pools: Sequence[NodePool], models: Sequence[PlacementModel]) -> FleetPlan:
        shapes = openings_of(pools)
        instance = make_instance([unit for _, unit in shapes], models, self.estimator)
        kinds = {(pool, unit.num_gpus): instance.kind_of(unit) for pool, unit in shapes}
        candidates = parallel_candidates(instance)
        best: Packing | None = None
        for meshes in mesh_groups(pools):
            packing = Packing.of_nodes(instance, pools)
            for pool, node, num_gpus in meshes:
                packing.open(kinds[pool, num_gpus], (pool, node))
            packing = _greedy(instance, packing, candidates)
            if best is None or key_of(packing)[:2] < key_of(best)[:2]:
                best = packing
            if self.is_time_up():
                break
        return carve(best if best is not None else Packing.of_nodes(instance, pools), pools, rule=_RULE)


def _make(estimator: Estimator, is_time_up: IsTimeUp) -> MuxServeSolver:
    return MuxServeSolver(estimator=estimator, is_time_up=is_time_up)


SOLVER = SolverEntry(
    name="muxserve",
    rule="MuxServe's Algorithms 1 and 2 as published: one mesh per model, tensor parallelism over all of it, no "
    "replicas",
    make=_make,
    make_for_nodes=_make,
)


def parallel_candidates(instance: Instance) -> dict[tuple[int, int], float]:
    """Algorithm 2: per model and kind of mesh the smallest share of SMs that carries the model's load, or all of them
    where none does. A kind is missing where the model cannot run.
    """
    candidates = {}
    for kind, costs in enumerate(instance.costs):
        for model in map(int, np.flatnonzero(costs.runs)):
            rate = float(instance.rates_per_s[model])
            # Alone on a share s of the SMs a model carries what it carries on all of them at 1 / s of the load.
            alone = float(costs.factor(costs.sums(model, rate), costs.minima(model, rate)))
            candidates[model, kind] = next((s for s in _SM_SHARES if alone * s >= 1), 1.0)
    return candidates


def mesh_groups(pools: Sequence[NodePool]) -> Iterator[Meshes]:
    """Every way to cut all nodes into meshes within nodes, told apart by the numbers of meshes of each size only, one
    at a time: a thousand GPUs have millions. Those with the fewest small meshes come first.
    """
    return _groups_from(pools, 0)


def _groups_from(pools: Sequence[NodePool], number: int) -> Iterator[Meshes]:
    if number == len(pools):
        yield ()
        return
    pool = pools[number]
    for counts in _counts(pool, pool.sizes()):
        meshes = tuple(_on_nodes(pool, counts))
        for rest in _groups_from(pools, number + 1):
            yield (*((number, node, size) for node, size in meshes), *rest)


def _counts(pool: NodePool, sizes: Sequence[int]) -> Iterator[dict[int, int]]:
    """Meshes of each size that use all GPUs of all nodes, or as many as they can."""
    if not sizes:
        yield {}
        return
    assert all(larger % size == 0 for size, larger in pairwise(sizes)), "each size is a part of the next"
    yield from _cut(pool, sizes, _room(pool, sizes[0]))


def _cut(pool: NodePool, sizes: Sequence[int], gpus: int) -> Iterator[dict[int, int]]:
    """`gpus` GPUs in meshes of these sizes, no more of the larger ones than nodes have room for."""
    size, *larger = sizes
    if not larger:
        yield {size: gpus // size}
        return
    room = _room(pool, larger[0])
    least = gpus - room if gpus > room else gpus % larger[0]
    for taken in range(least, gpus + 1, larger[0]):
        for others in _cut(pool, larger, gpus - taken):
            yield {size: taken // size, **others}


def _room(pool: NodePool, size: int) -> int:
    return pool.num_nodes * (pool.gpus_per_node // size) * size


def _on_nodes(pool: NodePool, counts: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """(node, GPUs) of each mesh: every node has the largest that are left and fit it."""
    left = dict(sorted(counts.items(), reverse=True))
    for node in range(pool.num_nodes):
        free = pool.gpus_per_node
        for size in left:
            here = min(left[size], free // size)
            left[size] -= here
            free -= here * size
            yield from [(node, size)] * here


def _greedy(instance: Instance, packing: Packing, candidates: dict[tuple[int, int], float]) -> Packing:
    """Lines 5 to 16: the model with the most computation first, each onto the mesh where F grows most. Of equal meshes
    the one with the fewest SMs spoken for.
    """
    spoken_for = dict.fromkeys(packing.open_units(), 0.0)
    for model in instance.orders()[0]:
        rate = float(instance.rates_per_s[model])
        best: tuple[float, float, int] | None = None
        for kind in sorted({int(packing.kind[u]) for u in spoken_for}):
            units, factors = packing.factors_with(model, rate, kind)
            for position in np.flatnonzero(factors >= 0):
                unit = int(units[position])
                load = float(packing.sums[unit, LOAD])
                delta = (load + rate) * min(1.0, factors[position]) - load * min(1.0, packing.factor[unit])
                option = (-round(delta, 9), spoken_for[unit] + candidates[model, kind], unit)
                best = option if best is None else min(best, option)
        if best is not None:
            packing.put(best[2], model, rate)
            spoken_for[best[2]] = best[1]
    return packing
