"""Nodes that the demand does not fill: a plan for the demand multiplied as far as the nodes can serve it
has most headroom. Spare GPUs shorten waits and take bursts, where a plan on the fewest would be full from the start.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from placement.estimation.throughput import LOAD
from placement.packing.headroom_balancing import balance_headroom
from placement.packing.packing import Packing
from placement.packing.packing_objective import key_of, serves_all
from placement.problem import PlacementModel

_MOST_PLANS = 5
_LEAST_STEP, _STEP = 1.04, 1.1  # times the demand that was borne
_ENOUGH = 4.0  # times the demand: more of it shortens waits little

PackFor = Callable[[Sequence[PlacementModel]], Packing]


def roomiest(tight: Packing, pack: PackFor, empty: Callable[[], Packing], is_time_up: Callable[[], bool]) -> Packing:
    """Returns, of the plans for ever more of the demand, the one whose fullest unit has most room, with the demand
    itself.

    `tight` serves all of it; `pack` plans for other demands, on as few GPUs as that takes; `empty` has the same nodes.
    """
    balance_headroom(tight, is_time_up=is_time_up)
    best, factor = tight, least_headroom(tight)
    step = max(_STEP, _gpus_per_used(tight))
    for _ in range(_MOST_PLANS):
        if step < _LEAST_STEP or factor >= _ENOUGH or is_time_up():
            break
        asked = min(_ENOUGH, factor * step)
        grown = pack([model.times(asked) for model in tight.instance.models])
        bears_all = serves_all(key_of(grown))
        tried = _with_demand(grown, empty(), asked)
        balance_headroom(tried, is_time_up=is_time_up)
        if serves_all(key_of(tried)) and least_headroom(tried) > least_headroom(best):
            best = tried
        factor = max(factor, least_headroom(best))
        step = max(_STEP, _gpus_per_used(grown)) if bears_all else math.sqrt(step)
    return best


def open_twins(packing: Packing) -> None:
    """Opens an empty unit like each that runs on another node of its pool with GPUs to spare, the most asked for first:
    room for what a lost node leaves.
    """
    running = [u for u in packing.open_units() if packing.parts[u]]
    for number in sorted(running, key=lambda u: (-float(packing.sums[u, LOAD]), u)):
        pool, node = packing.node_of(number)
        free = packing.free_gpus[pool].copy()
        free[node] = 0
        others = np.flatnonzero(free >= packing.costs_of(number).num_gpus)
        if len(others):
            fullest = int(others[free[others].argmin()])  # so that whole nodes stay whole
            packing.open(int(packing.kind[number]), (pool, fullest))


def _gpus_per_used(packing: Packing) -> float:
    used = max(1, packing.gpus_used)
    return 1.0 + sum(int(free.sum()) for free in packing.free_gpus.values()) / used


def least_headroom(packing: Packing) -> float:
    """Returns the least headroom of the units that hold a model; at most what is enough."""
    return min((float(packing.factor[u]) for u in packing.open_units() if packing.parts[u]), default=_ENOUGH)


def _with_demand(grown: Packing, packing: Packing, factor: float) -> Packing:
    """The same units and replicas on `packing`'s nodes, with so much less load."""
    for number in grown.open_units():
        if not grown.parts[number]:
            continue
        unit = packing.open(int(grown.kind[number]), grown.nodes[number])
        for model, rate in grown.parts[number].items():
            packing.put(unit, model, rate / factor)
    return packing
