"""Turns packings back into units and plans."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from placement.estimation.memory import pool_blocks_beside
from placement.estimation.quotas import QuotaClaim, QuotaShortage, initial_quotas
from placement.estimation.refusal import refusal
from placement.estimation.throughput import BYTES, FLOOR, LOAD, MODELS
from placement.nodes import FleetPlan, NodePool
from placement.packing.packing import Node, Packing
from placement.plan import ModelPlacement, Plan, UnitCapacity, UnitPlan


def plan_of_packing(packing: Packing, units: Mapping[int, UnitCapacity], *, rule: str | None = None) -> Plan:
    """`units` says what each number is; those that are not open hold nothing. `rule`: why the solver leaves units aside
    that have room, and the remedy.
    """
    claims = _Claims(packing)
    plans = tuple(
        UnitPlan(unit_id=unit.unit_id, models=tuple(_placements(packing, u, unit, claims))) for u, unit in units.items()
    )
    return Plan(units=plans, unplaced=dict(_refusals(packing, units, rule)))


def carve(packing: Packing, pools: Sequence[NodePool], *, rule: str | None = None) -> FleetPlan:
    """Gives every open unit its GPUs: on each node the largest units first."""
    units = units_of_packing(packing, pools)
    plan = plan_of_packing(packing, {**units, **_largest_that_could_be(packing, pools)}, rule=rule)
    ids = {u.unit_id for u in units.values()}
    return FleetPlan(
        units=tuple(units.values()), plan=replace(plan, units=tuple(u for u in plan.units if u.unit_id in ids))
    )


def units_of_packing(packing: Packing, pools: Sequence[NodePool]) -> dict[int, UnitCapacity]:
    on_nodes: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for unit in packing.open_units():
        node = packing.nodes[unit]
        assert node is not None, "units are cut out of nodes"
        on_nodes[node].append(unit)
    units: dict[int, UnitCapacity] = {}
    for (pool, number), here in sorted(on_nodes.items()):
        first_gpu = 0
        for unit in sorted(here, key=lambda u: (-packing.costs_of(u).num_gpus, sorted(packing.parts[u]), u)):
            num_gpus = packing.costs_of(unit).num_gpus
            units[unit] = pools[pool].unit(number, first_gpu, num_gpus)
            first_gpu += num_gpus
    return units


def _largest_that_could_be(packing: Packing, pools: Sequence[NodePool]) -> Mapping[int, UnitCapacity]:
    """An empty unit of each pool with free GPUs, for refusals to name."""
    could: dict[int, UnitCapacity] = {}
    for pool, free in packing.free_gpus.items():
        sizes = [n for n in pools[pool].sizes() if len(free) and n <= free.max()]
        if sizes:
            node = int(free.argmax())
            first_gpu = pools[pool].gpus_per_node - int(free[node])
            could[-1 - pool] = pools[pool].unit(node, first_gpu, sizes[-1])
    return could


class _Claims:
    """Claims of the packing's models on units; those of a shape are alike but for the loads."""

    def __init__(self, packing: Packing) -> None:
        self._packing = packing
        self._known: dict[tuple[int, int, int], QuotaClaim] = {}

    def on(self, number: int, unit: UnitCapacity) -> list[QuotaClaim]:
        return [self._of(m, unit).at(rate) for m, rate in sorted(self._packing.parts[number].items())]

    def _of(self, model: int, unit: UnitCapacity) -> QuotaClaim:
        key = (model, unit.block_bytes, unit.num_gpus)
        if key not in self._known:
            claim = QuotaClaim.of(self._packing.instance.models[model], unit.block_bytes, unit.num_gpus)
            self._known[key] = claim
        return self._known[key]


def _placements(packing: Packing, number: int, unit: UnitCapacity, claims_of: _Claims) -> Iterator[ModelPlacement]:
    if number < 0 or not packing.parts[number]:
        return
    claims = claims_of.on(number, unit)
    resident_bytes = packing.costs_of(number).resident_bytes
    held_bytes = sum(int(resident_bytes[m]) for m in packing.parts[number]) if unit.sizes_pool else 0
    total_blocks = pool_blocks_beside(unit, held_bytes)
    quotas = initial_quotas(claims, total_blocks=total_blocks)
    assert not isinstance(quotas, QuotaShortage), "a packing holds no more than the floors admit"
    for claim in claims:
        yield ModelPlacement(model=claim.model, quota_blocks=quotas[claim.model])


def _refusals(packing: Packing, units: Mapping[int, UnitCapacity], rule: str | None) -> Iterator[tuple[str, str]]:
    models, unopened = packing.instance.models, [u for u in units if u < 0]
    for number, model in enumerate(models):
        placed = len(packing.homes[number])
        if placed < model.min_replicas:
            nearest = _nearest_to_take(packing, number)
            others = [(units[u], [models[m] for m in packing.parts[u]]) for u in sorted(nearest & units.keys())]
            others += [(units[u], []) for u in unopened]
            prefix = f"{placed} of {model.min_replicas} replicas placed: " if placed else ""
            yield model.model, prefix + refusal(model, others, rule=rule)


def _nearest_to_take(packing: Packing, model: int) -> frozenset[int]:
    """Of every kind the open unit without the model that lacks least to take it, in bytes; only these are worth a
    closer look where there are thousands.
    """
    nearest: set[int] = set()
    for kind, costs in enumerate(packing.instance.costs):
        units = np.setdiff1d(np.flatnonzero(packing.kind == kind), list(packing.homes[model]), assume_unique=True)
        if len(units):
            sums = packing.sums[units]
            missing_bytes = sums[:, BYTES] + costs.resident_bytes[model] - costs.memory_bytes
            with_it = sums + costs.sums(model, 0.0)
            missing_blocks = with_it[:, FLOOR] - costs.pool_beside(with_it)
            lack = np.maximum(0, missing_bytes) + packing.instance.kinds[kind].block_bytes * np.maximum(
                0, missing_blocks
            )
            lack[sums[:, MODELS] >= costs.max_models] = np.inf
            nearest.add(int(units[lack.argmin()]))
    return frozenset(nearest)


_Held = dict[int, float]
"""Requests per second by model."""


def spread_over_nodes(packing: Packing) -> None:
    """Changes nothing but the nodes that units are cut out of, which are alike wherever they are: each goes where there
    is least of what it holds, for the day a node is lost. The largest units choose first, which
    always leaves room for the others, of these the most asked for.
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
