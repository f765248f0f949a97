"""Puts a model's load onto units that are open, or onto units yet to be cut out of nodes."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placement.estimation.throughput import BYTES, LOAD, Floats
from placement.packing.packing import Node, Packing
from placement.problem import PlacementModel

_NO_LOAD = 1e-9
_FINER_PARTS = (1, 2, 4)
_PARTS_BEYOND_SLO = (1.0, 0.5, 0.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertionRules:
    """`margin`: a unit is full when its load could grow by no more than this factor. `spread`: prefer the least loaded
    unit, else the one whose load grows least. `opening_cost`: what the idle part of a new unit counts, as a share.
    `mesh_bias`: new units of g GPUs count g ** mesh_bias GPUs, so -1 makes large meshes as dear as small ones.
    `few_replicas`: no more of a model than it must have. `dedicated`: one model to a unit.
    """

    margin: float = 1.15
    spread: bool = False
    opening_cost: float = 0.5
    mesh_bias: float = 0.0
    few_replicas: bool = False
    dedicated: bool = False


@dataclass(frozen=True, slots=True)
class Home:
    """An open unit, or a new one of `kind` on `node`. `value`: less is better."""

    value: float
    unit: int
    kind: int
    node: Node | None
    rate_per_s: float


class Insertion:
    """`openings` are the kinds of units that nodes can be cut into: (pool, kind). Once time is up a model gets no more
    than one replica.
    """

    def __init__(
        self,
        packing: Packing,
        rules: InsertionRules,
        openings: Sequence[tuple[int, int]] = (),
        is_time_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self._packing = packing
        self._is_time_up = is_time_up
        self._rules = rules
        self._openings = openings
        self._kinds = sorted({*(int(k) for k in packing.kind if k >= 0), *(kind for _, kind in openings)})

    def insert(self, model: int, rate_per_s: float) -> None:
        """Adds replicas of `model` for so much more load, as many as it takes and its bounds admit. Load that finds no
        place within SLOs is put where it does most good.
        """
        if not self._packing.instance.placeable[model]:
            return
        wanted, homes = self._packing.instance.models[model], self._packing.homes[model]
        remaining = rate_per_s
        while len(homes) < self._most(wanted) and (remaining > _NO_LOAD or len(homes) < wanted.min_replicas):
            placed = self.insert_replica(model, remaining)
            if placed is None:
                break
            remaining -= placed
            if self._is_time_up():
                break
        if remaining > _NO_LOAD and homes:
            given = {unit: self._packing.parts[unit][model] for unit in sorted(homes)}
            total = sum(given.values())
            for unit, rate in given.items():
                part = rate / total if total > 0 else 1 / len(given)
                self._packing.set_rate(unit, model, rate + remaining * part)

    def insert_replica(self, model: int, rate_per_s: float) -> float | None:
        """Adds one replica; returns its part of the load, None where it finds no place."""
        home = self._fitting(model, rate_per_s) or self._best_effort(model, rate_per_s)
        if home is None:
            return None
        unit = self._packing.open(home.kind, home.node) if home.node is not None else home.unit
        self._packing.put(unit, model, home.rate_per_s)
        return home.rate_per_s

    def _fitting(self, model: int, rate_per_s: float) -> Home | None:
        """In as few parts as units alone could carry; where others leave too little room, in smaller ones."""
        for finer in _FINER_PARTS:
            home = min(self._homes_within_slo(model, rate_per_s, finer), key=_order, default=None)
            if home is not None:
                return home
        return None

    def _homes_within_slo(self, model: int, rate_per_s: float, finer: int) -> Iterator[Home]:
        packing, rules = self._packing, self._rules
        openable = [(pool, kind) for pool, kind in self._openings if self._node(pool, kind) is not None]
        for kind in self._kinds:
            part = self._part(model, rate_per_s, kind, finer)
            if part is None:
                continue
            num_gpus = packing.instance.costs[kind].num_gpus
            per_request = 1.0 / max(part, _NO_LOAD)
            units, factors = self._candidates(model, part, kind, rules.margin)
            good = np.flatnonzero(factors >= rules.margin)
            if len(good):
                used = 1.0 / factors[good]
                if rules.spread:
                    values = used + 0.1 * packing.memory_share(units[good], kind)
                else:
                    values = num_gpus * (used - 1.0 / np.maximum(packing.factor[units[good]], 1e-9)) * per_request
                best = int(values.argmin())
                yield Home(float(values[best]), int(units[good[best]]), kind, None, part)
            for pool, opening in openable:
                alone = packing.factor_alone(model, part, kind) if opening == kind else -1.0
                if alone >= rules.margin:
                    used_alone = 1.0 / alone
                    gpus = num_gpus ** (1 + rules.mesh_bias)
                    value = gpus * (used_alone + rules.opening_cost * (1 - used_alone)) * per_request
                    yield Home(value, -1, kind, self._node(pool, kind), part)

    def _part(self, model: int, rate_per_s: float, kind: int, finer: int) -> float | None:
        """An equal part of the load that a unit of the kind could carry alone; None if it cannot carry any, or if finer
        parts than that are more replicas than may be.
        """
        wanted = self._packing.instance.models[model]
        placed = len(self._packing.homes[model])
        alone = self._packing.factor_alone(model, rate_per_s, kind)
        if alone <= 0:
            return None
        parts = finer * max(1, math.ceil(self._rules.margin / alone - 1e-9), wanted.min_replicas - placed)
        most = max(1, self._most(wanted) - placed)
        return rate_per_s / min(parts, most) if finer == 1 or parts <= most else None

    def _best_effort(self, model: int, rate_per_s: float) -> Home | None:
        """Where the most requests more are served; for a first replica even where it costs others more."""
        packing = self._packing
        wanted, placed = packing.instance.models[model], len(packing.homes[model])
        is_needed = placed < wanted.min_replicas
        missing = max(1, wanted.min_replicas - placed)
        sizes = _PARTS_BEYOND_SLO if placed + 1 < self._most(wanted) else (1.0,)
        homes = [h for size in sizes for h in self._homes_beyond_slo(model, rate_per_s * size / missing, is_needed)]
        best = min(homes, key=_order, default=None)
        return best if best is not None and (is_needed or best.value < -_NO_LOAD) else None

    def _homes_beyond_slo(self, model: int, part: float, is_needed: bool) -> Iterator[Home]:
        packing = self._packing
        for kind in self._kinds:
            units, factors = self._candidates(model, part, kind, 0.0 if is_needed else 1.0)
            good = np.flatnonzero(factors >= 0)
            if len(good):
                load = packing.sums[units[good], LOAD]
                served_before = load * np.minimum(1.0, packing.factor[units[good]])
                gain = (load + part) * np.minimum(1.0, factors[good]) - served_before
                values = -gain + 1e-6 * packing.memory_share(units[good], kind)
                best = int(values.argmin())
                yield Home(float(values[best]), int(units[good[best]]), kind, None, part)
        for pool, kind in self._openings:
            node, alone = self._node(pool, kind), packing.factor_alone(model, part, kind)
            if node is not None and alone >= 0:
                gpus = packing.instance.costs[kind].num_gpus ** (1 + self._rules.mesh_bias)
                yield Home(-part * min(1.0, alone) / gpus, -1, kind, node, part)

    def _candidates(
        self, model: int, rate_per_s: float, kind: int, above: float
    ) -> tuple[npt.NDArray[np.intp], Floats]:
        units, factors = self._packing.factors_with(model, rate_per_s, kind, above=above)
        if self._rules.dedicated and len(units):
            factors = np.where(self._packing.sums[units, BYTES] > 0, -1.0, factors)
        return units, factors

    def _most(self, wanted: PlacementModel) -> int:
        return max(1, wanted.min_replicas) if self._rules.few_replicas else wanted.max_replicas

    def _node(self, pool: int, kind: int) -> Node | None:
        return self._packing.node_for(pool, self._packing.instance.costs[kind].num_gpus)


def _order(home: Home) -> tuple[float, int, int, int]:
    return home.value, home.unit == -1, home.kind, home.unit
