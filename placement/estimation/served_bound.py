"""Bounds what any plan can serve: a linear relaxation of placement, solved by HiGHS.

Requests of model m are spread over kinds of units k and ways w of sharing SMs. Every limit of throughput.py says that
terms which grow at least linearly with each model's load sum to at most 1 per unit; here what they are for little load
sums to at most the GPUs of the pool, as if units could be filled to the brim. A model that is served takes its weights
with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placement.estimation.problem_arrays import Estimator, Instance, make_instance
from placement.estimation.throughput import Floats, KindCosts
from placement.nodes import NodePool, openings_of
from placement.plan import UnitCapacity
from placement.problem import PlacementModel

_TOO_MUCH_GPUS = 1e9  # per request per second: nothing that any fleet serves, and numbers that HiGHS refuses


@dataclass(frozen=True, slots=True)
class _Supply:
    """GPUs of one pool, in units of the kinds that it can be cut into."""

    num_gpus: float
    kinds: tuple[int, ...]


def most_served_of_nodes(pools: Sequence[NodePool], models: Sequence[PlacementModel], estimator: Estimator) -> float:
    """Requests per second within SLO that no division of the nodes and no plan exceeds."""
    shapes = openings_of(pools)
    instance = make_instance([unit for _, unit in shapes], models, estimator)
    openings = instance.openings(shapes)
    supplies = [
        _Supply(p.num_gpus, tuple(kind for pool, kind in openings if pool == number)) for number, p in enumerate(pools)
    ]
    return _most_served(instance, supplies)


def most_served(units: Sequence[UnitCapacity], models: Sequence[PlacementModel], estimator: Estimator) -> float:
    """The same for units that are given."""
    instance = make_instance(units, models, estimator)
    counts = np.bincount([instance.kind_of(u) for u in units], minlength=len(instance.kinds))
    supplies = [_Supply(float(n * instance.costs[k].num_gpus), (k,)) for k, n in enumerate(counts)]
    return _most_served(instance, supplies)


def _most_served(instance: Instance, supplies: Sequence[_Supply]) -> float:
    from scipy.optimize import linprog  # half a second that who plans nothing is spared
    from scipy.sparse import csr_matrix, vstack

    columns: list[Floats] = []  # one row per limit, one column per model
    where: list[tuple[int, int]] = []  # supply and way of each block of columns
    for supply, of in enumerate(supplies):
        for kind in of.kinds:
            costs = instance.costs[kind]
            for way in range(costs.num_ways):
                columns.append(_needs(costs, way, instance.rates_per_s))
                where.append((supply, way))
    num_models, blocks = len(instance.models), len(columns)
    if num_models == 0 or blocks == 0:
        return 0.0
    asked = csr_matrix(np.tile(np.eye(num_models), (1, blocks)))
    rows, limits = [asked], [instance.rates_per_s]
    for supply, of in enumerate(supplies):
        for limit in range(columns[0].shape[0]):
            row = np.concatenate(
                [c[limit] if w[0] == supply else np.zeros(num_models) for c, w in zip(columns, where, strict=True)]
            )
            rows.append(csr_matrix(np.where(np.isfinite(row), row, 0.0)))
            limits.append(np.array([of.num_gpus]))
    able = np.concatenate([np.all(np.isfinite(c), axis=0) for c in columns])
    answer = linprog(
        c=-np.ones(num_models * blocks),
        A_ub=vstack(rows, format="csr"),
        b_ub=np.concatenate(limits),
        bounds=[(0.0, None if can else 0.0) for can in able],
        method="highs",
    )
    assert answer.success, answer.message
    hopeless = sum(float(instance.rates_per_s[m]) for m in instance.hopeless)
    return min(float(-answer.fun), float(instance.rates_per_s.sum()) - hopeless)


def _needs(costs: KindCosts, way: int, rates_per_s: Floats) -> Floats:
    """[limits, models]: GPUs that one request per second takes at least, by each limit; infinite: it cannot run."""
    by_limit = costs.least_needs()[:, :, way]
    # A replica carries no more than this, and its weights take their part of the memory.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        most = np.minimum(1.0 / by_limit.max(axis=0), rates_per_s)
        by_memory = costs.resident_bytes / costs.memory_bytes / most
    needs = costs.num_gpus * np.concatenate((by_limit, by_memory[None]))
    needs[:, ~costs.runs | (costs.resident_bytes > costs.memory_bytes)] = np.inf
    return np.where(needs < _TOO_MUCH_GPUS, needs, np.inf)
