"""Units being filled with parts of models' load. What the estimate says of them is kept up to date."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placement.estimation.problem_arrays import Instance
from placement.estimation.throughput import BYTES, LARGEST_FACTOR, NUM_SUMS, SLACK, Floats, KindCosts
from placement.neighbour_strain import strain_of, strained
from placement.nodes import NodePool
from placement.plan import UnitCapacity

_WAYS = 8  # columns for the ways of sharing; kinds with fewer leave the rest at infinity
_CLOSED = -1
_MOST_KNOWN = 4096  # fillings of units that are remembered: some 3 MB

Node = tuple[int, int]
"""Pool and number."""


@dataclass(frozen=True, slots=True)
class _Saved:
    kind: int
    node: Node | None
    parts: dict[int, float]


Parts = Mapping[int, float]
"""Loads by model."""
Snapshot = Mapping[int, _Saved]
"""Of the open units."""
Pairs = frozenset[tuple[int, int]]
"""Units and models."""
_Filled = tuple[Floats, Floats, float]
"""Sums, minima and factor of a unit."""


class Packing:
    """Kinds and models are numbers of `instance`; a unit is a number too. A closed unit holds nothing, and its GPUs are
    its node's. `free_gpus` maps a pool to the free GPUs of each of its nodes, for units that are cut out of nodes.
    `missing` counts the replicas that models must have and have not, of models that some kind of unit can hold.
    `running` is what was there when `mark_running` was called, None before; `loaded` counts the replicas beside it,
    `dropped` those of it that are gone.
    """

    def __init__(self, instance: Instance, *, free_gpus: Mapping[int, Iterable[int]] | None = None) -> None:
        self.instance = instance
        self.free_gpus = {pool: np.array(list(nodes), dtype=np.int64) for pool, nodes in (free_gpus or {}).items()}
        self.kind = np.full(16, _CLOSED)
        self.sums = np.zeros((16, NUM_SUMS))
        self.minima = np.full((16, SLACK + _WAYS), np.inf)
        self.factor = np.full(16, LARGEST_FACTOR)
        self.parts: list[dict[int, float]] = [{} for _ in range(16)]
        self.nodes: list[Node | None] = [None] * 16
        self.homes: list[set[int]] = [set() for _ in instance.models]
        self.served_of = np.zeros(len(instance.models))
        self.gpus_used = 0
        self.missing = sum(m.min_replicas for m, held in zip(instance.models, instance.placeable, strict=True) if held)
        self.running: Pairs | None = None
        self.loaded = self.dropped = 0
        self._alone: dict[tuple[int, float, int], float] = {}
        self._known: dict[tuple[int, tuple[tuple[int, float], ...]], _Filled] = {}
        self._journal: dict[int, _Saved] | None = None

    @classmethod
    def of_units(cls, instance: Instance, units: Sequence[UnitCapacity]) -> "Packing":
        """Units numbered in the order given."""
        packing = cls(instance)
        while len(packing.kind) < len(units):
            packing._grow()
        packing.kind[: len(units)] = [instance.kind_of(unit) for unit in units]
        return packing

    @classmethod
    def of_nodes(cls, instance: Instance, pools: Sequence[NodePool]) -> "Packing":
        return cls(instance, free_gpus={i: [p.gpus_per_node] * p.num_nodes for i, p in enumerate(pools)})

    def open_units(self) -> list[int]:
        return [int(u) for u in np.flatnonzero(self.kind != _CLOSED)]

    def pairs(self) -> Pairs:
        return frozenset((unit, model) for model, homes in enumerate(self.homes) for unit in homes)

    def mark_running(self) -> None:
        """Counts from here on what has to be loaded, and what goes."""
        self.replace_running(self.pairs())

    def replace_running(self, running: Pairs) -> None:
        """Counts as if `running` were there."""
        pairs = self.pairs()
        self.running, self.loaded, self.dropped = running, len(pairs - running), len(running - pairs)

    def costs_of(self, unit: int) -> KindCosts:
        return self.instance.costs[int(self.kind[unit])]

    def memory_share(self, units: npt.NDArray[np.intp], kind: int) -> Floats:
        return np.asarray(self.sums[units, BYTES] / max(1.0, self.instance.costs[kind].memory_bytes))

    def open(self, kind: int, node: Node | None = None) -> int:
        closed = np.flatnonzero(self.kind == _CLOSED)
        if len(closed) == 0:
            self._grow()
            closed = np.flatnonzero(self.kind == _CLOSED)
        unit = int(closed[0])
        self._remember(unit)
        self._assign(unit, kind, node)
        return unit

    def change_nodes(self, nodes: Mapping[int, Node]) -> None:
        """Puts units on other nodes of their pools, all at once."""
        for unit in nodes:
            pool, node = self.node_of(unit)
            self.free_gpus[pool][node] += self.costs_of(unit).num_gpus
        for unit, (pool, node) in nodes.items():
            self.free_gpus[pool][node] -= self.costs_of(unit).num_gpus
            self.nodes[unit] = pool, node
        assert all(int(free.min(initial=0)) >= 0 for free in self.free_gpus.values()), "a node has no more GPUs"

    def close(self, unit: int) -> None:
        """An empty unit gives its GPUs back to its node."""
        assert not self.parts[unit], "only empty units close"
        self._remember(unit)
        self._release(unit)

    def fill(self, parts: Mapping[int, Parts]) -> None:
        """Gives many empty units their parts at once."""
        for kind, costs in enumerate(self.instance.costs):
            units = [u for u in parts if parts[u] and self.kind[u] == kind]
            if not units:
                continue
            columns = [_columns(parts[u]) for u in units]
            rows = np.repeat(units, [len(models) for models, _ in columns])
            models, rates = (np.concatenate(c) for c in zip(*columns, strict=True))
            np.add.at(self.sums, rows, costs.sums(models, rates))
            lowest = self.minima[:, : SLACK + costs.num_ways]
            np.minimum.at(lowest, rows, costs.minima(models, rates))
            strains = np.array([strain_of(parts[u], self.instance.strains) for u in units])
            self.factor[units] = strained(costs.factor(self.sums[units], lowest[units]), strains)
            self.gpus_used += costs.num_gpus * len(units)
            for unit in units:
                assert not self.parts[unit], "only empty units are filled"
                self._remember(unit)
                self.parts[unit] = dict(parts[unit])
                self._count(unit, {}, 1.0)

    def put(self, unit: int, model: int, rate_per_s: float) -> None:
        assert model not in self.parts[unit], "one replica of a model on a unit"
        self._remember(unit)
        self._set_parts(unit, {**self.parts[unit], model: rate_per_s})

    def take(self, unit: int, model: int) -> float:
        """Returns the load that the replica had."""
        self._remember(unit)
        rest = dict(self.parts[unit])
        rate = rest.pop(model)
        self._set_parts(unit, rest)
        return rate

    def set_rate(self, unit: int, model: int, rate_per_s: float) -> None:
        self._remember(unit)
        self._set_parts(unit, {**self.parts[unit], model: rate_per_s})

    def factor_of(self, unit: int, parts: Parts) -> float:
        """The factor that the unit would have with these parts instead; -1: it cannot hold them."""
        costs = self.costs_of(unit)
        if not parts:
            return LARGEST_FACTOR
        models, rates = _columns(parts)
        if not costs.runs[models].all():
            return -1.0
        sums = costs.sums(models, rates).sum(axis=0)
        if not bool(costs.holds(sums)):
            return -1.0
        return self._strained(costs.factor(sums, costs.minima(models, rates).min(axis=0)), parts)

    def rearrange(self, parts: Mapping[int, Parts]) -> None:
        """Units get these parts instead of those they have."""
        for unit in parts:
            self._remember(unit)
            self._set_parts(unit, {})
        for unit, of_unit in parts.items():
            self._set_parts(unit, dict(of_unit))

    def begin(self) -> None:
        """Starts a trial: changes from here on can be taken back."""
        assert self._journal is None, "one attempt at a time"
        self._journal = {}

    def commit(self) -> None:
        self._journal = None

    def roll_back(self) -> None:
        journal, self._journal = self._journal, None
        assert journal is not None, "nothing was begun"
        for unit in journal:
            if self.kind[unit] != _CLOSED:
                self._set_parts(unit, {})
                self._release(unit)
        for unit, saved in journal.items():
            if saved.kind != _CLOSED:
                self._assign(unit, saved.kind, saved.node)
                self._set_parts(unit, saved.parts)

    def snapshot(self) -> Snapshot:
        return {u: _Saved(int(self.kind[u]), self.nodes[u], self.parts[u]) for u in self.open_units()}

    def restore(self, snapshot: Snapshot) -> None:
        for unit in self.open_units():
            if snapshot.get(unit) != _Saved(int(self.kind[unit]), self.nodes[unit], self.parts[unit]):
                self._set_parts(unit, {})
                self._release(unit)
        for unit, saved in snapshot.items():
            if self.kind[unit] == _CLOSED:
                self._assign(unit, saved.kind, saved.node)
                self._set_parts(unit, saved.parts)

    def factors_with(
        self, model: int, rate_per_s: float, kind: int, *, above: float = 0.0
    ) -> tuple[npt.NDArray[np.intp], Floats]:
        """Open units of a kind without the model and with memory for it, and the factor each would have with this
        replica; -1: no room. Only units whose factor is `above` that now: more load lowers it.
        """
        costs = self.instance.costs[kind]
        # Most have none in a full fleet, and the rest takes longer.
        has_memory = self.sums[:, BYTES] + costs.own[model, BYTES] <= costs.memory_bytes
        candidates = (self.kind == kind) & (self.factor >= above) & has_memory
        candidates[list(self.homes[model])] = False
        units = np.flatnonzero(candidates)
        if not costs.runs[model] or len(units) == 0:
            return units[:0], np.zeros(0)
        sums = self.sums[units] + costs.sums(model, rate_per_s)
        minima = np.minimum(self.minima[units, : SLACK + costs.num_ways], costs.minima(model, rate_per_s))
        factors = self._strained_with(model, rate_per_s, units, costs.factor(sums, minima))
        return units, np.where(costs.holds(sums), factors, -1.0)

    def roomiest(
        self, model: int, rate_per_s: float, *, above: float = 0.0, but: frozenset[int] = frozenset()
    ) -> tuple[float, int] | None:
        """The unit that would have the largest factor with such a replica, and that factor; none of `but`."""
        best: tuple[float, int] | None = None
        for kind in range(len(self.instance.kinds)):
            units, factors = self.factors_with(model, rate_per_s, kind, above=above)
            if but:
                kept = ~np.isin(units, list(but))
                units, factors = units[kept], factors[kept]
            if len(units):
                here = int(np.argmax(factors))
                option = (float(factors[here]), -int(units[here]))
                best = option if best is None else max(best, option)
        return None if best is None else (best[0], -best[1])

    def factor_alone(self, model: int, rate_per_s: float, kind: int) -> float:
        """Returns the factor of a replica on an empty unit of the kind; -1: no room."""
        key = (model, rate_per_s, kind)
        factor = self._alone.get(key)
        if factor is None:
            factor = self._alone[key] = self._factor_alone(*key)
        return factor

    def node_for(self, pool: int, num_gpus: int) -> Node | None:
        """The fullest node with room, so that whole nodes stay whole."""
        free = self.free_gpus[pool]
        room = np.where(free >= num_gpus, free, np.iinfo(np.int64).max)
        number = int(room.argmin())
        return (pool, number) if free[number] >= num_gpus else None

    def _factor_alone(self, model: int, rate_per_s: float, kind: int) -> float:
        costs = self.instance.costs[kind]
        if not costs.runs[model]:
            return -1.0
        sums = costs.sums(model, rate_per_s)
        return float(costs.factor(sums, costs.minima(model, rate_per_s))) if bool(costs.holds(sums)) else -1.0

    def node_of(self, unit: int) -> Node:
        node = self.nodes[unit]
        assert node is not None, "units are cut out of nodes"
        return node

    def _assign(self, unit: int, kind: int, node: Node | None) -> None:
        self.kind[unit] = kind
        self.nodes[unit] = node
        if node is not None:
            self.free_gpus[node[0]][node[1]] -= self.instance.costs[kind].num_gpus
            assert self.free_gpus[node[0]][node[1]] >= 0, "a node has no more GPUs than it has"

    def _release(self, unit: int) -> None:
        node = self.nodes[unit]
        if node is not None:
            self.free_gpus[node[0]][node[1]] += self.costs_of(unit).num_gpus
        self.kind[unit] = _CLOSED
        self.nodes[unit] = None

    def _remember(self, unit: int) -> None:
        if self._journal is not None and unit not in self._journal:
            self._journal[unit] = _Saved(int(self.kind[unit]), self.nodes[unit], self.parts[unit])

    def _set_parts(self, unit: int, parts: dict[int, float]) -> None:
        costs, old = self.costs_of(unit), self.parts[unit]
        served_before = min(1.0, float(self.factor[unit]))
        self.gpus_used += costs.num_gpus * (bool(parts) - bool(old))
        self.parts[unit] = parts
        if parts:
            self.sums[unit], minima, self.factor[unit] = self._filled(int(self.kind[unit]), parts)
            self.minima[unit, : len(minima)] = minima
        else:
            self.sums[unit] = 0.0
            self.minima[unit] = np.inf
            self.factor[unit] = LARGEST_FACTOR
        self._count(unit, old, served_before)

    def _filled(self, kind: int, parts: Parts) -> _Filled:
        """Returns the sums, the minima and the factor of a unit of the kind. Trials that are taken back, and those of
        few units, come to the same parts again and again.
        """
        key = (kind, tuple(parts.items()))  # in their order: floats are added in it
        filled = self._known.get(key)
        if filled is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            costs, (models, rates) = self.instance.costs[kind], _columns(parts)
            sums, minima = costs.sums(models, rates).sum(axis=0), costs.minima(models, rates).min(axis=0)
            filled = self._known[key] = sums, minima, self._strained(costs.factor(sums, minima), parts)
        return filled

    def _strained(self, factor: Floats, parts: Parts) -> float:
        if not self.instance.strains:
            return float(factor)
        return float(strained(factor, np.array(strain_of(parts, self.instance.strains))))

    def _strained_with(self, model: int, rate_per_s: float, units: npt.NDArray[np.intp], factors: Floats) -> Floats:
        """Looks closer only at units that hold a model which is known to lose to another, or to cost another one."""
        if not self.instance.strains:
            return factors
        touched: set[int] = set().union(*(self.homes[m] for m in self.instance.strained_models))
        strains = np.zeros(len(units))
        for place in np.flatnonzero(np.isin(units, list(touched))):
            parts = {**self.parts[int(units[place])], model: rate_per_s}
            strains[place] = strain_of(parts, self.instance.strains)
        return strained(factors, strains)

    def _count(self, unit: int, old: Parts, served_before: float) -> None:
        """Keeps what is known of models in step with the unit's parts, which were `old`."""
        parts, served = self.parts[unit], min(1.0, float(self.factor[unit]))
        for model, rate in old.items():
            self.served_of[model] -= rate * served_before
            if model not in parts:
                self._count_replica(unit, model, -1)
                self.homes[model].discard(unit)
        for model, rate in parts.items():
            self.served_of[model] += rate * served
            if model not in old:
                self.homes[model].add(unit)
                self._count_replica(unit, model, 1)

    def _count_replica(self, unit: int, model: int, change: int) -> None:
        """`homes` has the replica, not yet gone or just come."""
        if len(self.homes[model]) <= self.instance.models[model].min_replicas and self.instance.placeable[model]:
            self.missing -= change
        if self.running is None:
            return
        if (unit, model) in self.running:
            self.dropped -= change
        else:
            self.loaded += change

    def _grow(self) -> None:
        size = len(self.kind)
        self.kind = np.concatenate((self.kind, np.full(size, _CLOSED)))
        self.sums = np.concatenate((self.sums, np.zeros_like(self.sums)))
        self.minima = np.concatenate((self.minima, np.full_like(self.minima, np.inf)))
        self.factor = np.concatenate((self.factor, np.full(size, LARGEST_FACTOR)))
        self.parts += [{} for _ in range(size)]
        self.nodes += [None] * size


def _columns(parts: Parts) -> tuple[npt.NDArray[np.intp], Floats]:
    return np.fromiter(parts, dtype=np.intp), np.fromiter(parts.values(), dtype=np.float64)
