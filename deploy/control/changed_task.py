"""Makes of what is planned for what would be planned for if demand, targets or nodes were others. Pure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from deploy.control.planner import PlanTask
from placement.errors import ModelUnknown
from placement.plan import Plan, UnitCapacity
from placement.problem import PlacementModel
from router.what_if import OtherTargets, WhatIfChanges
from traces.timeliness import SloTarget


def changed_task(task: PlanTask, changes: WhatIfChanges) -> PlanTask:
    """Raises ModelUnknown: a model is not planned for now."""
    known = {m.model for m in task.needs.models}
    for model in sorted((changes.rates.keys() | changes.targets.keys()) - known):
        raise ModelUnknown(model=model, known=tuple(sorted(known)))
    models = tuple(_asked(m, changes) for m in task.needs.models)
    units = tuple(task.needs.units)
    for pool, number in sorted(changes.nodes.items()):
        units = _with_nodes(units, pool, number, task.goal)
    return replace(task, needs=replace(task.needs, units=units, models=models))


def _asked(model: PlacementModel, changes: WhatIfChanges) -> PlacementModel:
    rate = changes.rates.get(model.model, model.demand.rate_per_s)
    other = changes.targets.get(model.model)
    slo = model.slo if other is None else _with_targets(model.slo, other)
    return replace(model.at_rate(rate), slo=slo)


def _with_targets(slo: SloTarget | None, other: OtherTargets) -> SloTarget:
    """What neither names is not bound."""
    own = slo or SloTarget(ttft_s=float("inf"), tbt_s=float("inf"))
    return SloTarget(
        ttft_s=own.ttft_s if other.ttft_s is None else other.ttft_s,
        tbt_s=own.tbt_s if other.tbt_s is None else other.tbt_s,
    )


def _with_nodes(units: Sequence[UnitCapacity], pool: str, number: int, goal: Plan) -> tuple[UnitCapacity, ...]:
    """The nodes with the least on them go; a new one is as the pool's node with the most units."""
    nodes: dict[str, list[UnitCapacity]] = defaultdict(list)
    for unit in units:
        if unit.pool == pool:
            nodes[unit.node].append(unit)
    placed = {u.unit_id: len(u.models) for u in goal.units}
    by_need = sorted(nodes, key=lambda node: (sum(placed.get(u.unit_id, 0) for u in nodes[node]), node))
    gone = set(by_need[: max(0, len(nodes) - number)])
    staying = tuple(u for u in units if u.pool != pool or u.node not in gone)
    return (*staying, *_new_units(nodes, pool, number - len(nodes)))


def _new_units(nodes: Mapping[str, Sequence[UnitCapacity]], pool: str, number: int) -> Sequence[UnitCapacity]:
    if not nodes:
        return ()  # no unit of the pool can be used now: nobody knows what a node of it has
    like = nodes[max(nodes, key=lambda node: (len(nodes[node]), node))]
    return tuple(
        replace(unit, unit_id=f"{pool}-new{i}-{k}", node=f"{pool}-new{i}", asleep={})
        for i in range(1, number + 1)
        for k, unit in enumerate(like, 1)
    )
