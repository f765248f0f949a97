"""Units of a pool are alike wherever they are: each goes to a node that has least of what it holds, for the day a node
is lost.
"""

from collections import defaultdict

import numpy as np

from placement.estimation.throughput import LOAD
from placement.packing.packing import Node, Packing

_Held = dict[int, float]
"""Requests per second by model."""


def spread_over_nodes(packing: Packing) -> None:
    """Changes nothing but the nodes that units are cut out of: the largest units choose first, which always leaves room
    for the others, of these the most asked for.
    """
    free = {pool: gpus.copy() for pool, gpus in packing.free_gpus.items()}
    units = packing.open_units()
    for unit in units:
        pool, node = packing.node_of(unit)
        free[pool][node] += packing.costs_of(unit).num_gpus
    on_node: defaultdict[Node, _Held] = defaultdict(dict)
    chosen: dict[int, Node] = {}
    for unit in sorted(units, key=lambda u: (-packing.costs_of(u).num_gpus, -float(packing.sums[u, LOAD]), u)):
        pool, _ = packing.node_of(unit)
        num_gpus, parts = packing.costs_of(unit).num_gpus, packing.parts[unit]
        able = [(pool, int(node)) for node in np.flatnonzero(free[pool] >= num_gpus)]
        best = min(able, key=lambda node: (_shared(packing, parts, on_node[node]), sum(on_node[node].values()), node))
        chosen[unit] = best
        free[pool][best[1]] -= num_gpus
        for model, rate in parts.items():
            on_node[best][model] = on_node[best].get(model, 0.0) + rate
    packing.change_nodes(chosen)


def _shared(packing: Packing, parts: _Held, held: _Held) -> float:
    """Sums over models the part of the demand that is on the unit, times that on the node."""
    rates = packing.instance.rates_per_s
    return sum(rate * held.get(m, 0.0) / float(rates[m]) ** 2 for m, rate in sorted(parts.items()) if rates[m] > 0)
