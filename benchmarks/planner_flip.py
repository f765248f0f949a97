"""Popularity flips: what an incremental plan moves, what a plan from scratch moves, and what is served meanwhile."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from planner_workloads import a100_nodes, mixed_fleet

from placement.diff import DrainModel, LoadModel, SetQuotas, Step, move_cost, steps_between
from placement.estimate import estimate
from placement.instance import Estimator
from placement.memory import holds_weights
from placement.plan import ModelPlacement, Plan, UnitCapacity, UnitPlan
from placement.solvers.base import PlacementModel
from placement.solvers.search import SearchSolver

LOAD_BYTES_PER_S = 2e9
DRAIN_S = 10.0
WINDOW_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipOutcome:
    """Shares are of requests within SLO, by the estimate. `served_in_window`: in the `WINDOW_S` after the flip, with
    the plan that holds at each moment. `served_if_nothing_moves`: with the old plan and the new popularity.
    """

    plan: str
    loads: int
    drains: int
    load_gib: float
    move_s: float
    served_if_nothing_moves: float
    served_in_window: float
    served_after: float


def flipped(models: Sequence[PlacementModel]) -> list[PlacementModel]:
    """The hottest gets the rate of the coldest, and so on."""
    by_rate = sorted(models, key=lambda m: m.demand.rate_per_s)
    rates = [m.demand.rate_per_s for m in reversed(by_rate)]
    return [replace(m, demand=replace(m.demand, rate_per_s=r)) for m, r in zip(by_rate, rates, strict=True)]


def flip_outcomes(num_gpus: int, num_models: int, *, seed: int, mean_rate_per_s: float) -> list[FlipOutcome]:
    """Units of two GPUs, which hold every model of the fleet but 65B; those stay out."""
    estimator = Estimator(max_running_sequences=256)
    pool = a100_nodes(num_gpus)
    units = [pool.unit(node, first, 2) for node in range(pool.num_nodes) for first in range(0, pool.gpus_per_node, 2)]
    models = [m for m in mixed_fleet(num_models, seed=seed, mean_rate_per_s=mean_rate_per_s) if m.spec.num_layers < 80]
    solver = SearchSolver(estimator=estimator)
    before, later = solver.solve(units, models, None), flipped(models)
    plans = {"incremental": solver.solve(units, later, before), "from scratch": solver.solve(units, later, None)}
    return [_outcome(name, units, later, before, plan, estimator) for name, plan in plans.items()]


def _outcome(
    name: str,
    units: Sequence[UnitCapacity],
    models: Sequence[PlacementModel],
    before: Plan,
    after: Plan,
    estimator: Estimator,
) -> FlipOutcome:
    by_id, by_name = {u.unit_id: u for u in units}, {m.model: m for m in models}

    def fits(unit_id: str, held: frozenset[str]) -> bool:
        return holds_weights(by_id[unit_id], [by_name[m].spec for m in held])

    steps = steps_between(before, after, fits=fits)
    cost = move_cost(
        steps, {m.model: m.spec.weight_bytes for m in models}, load_bytes_per_s=LOAD_BYTES_PER_S, drain_s=DRAIN_S
    )
    move_s, during = _replayed(units, models, before, steps, estimator)
    return FlipOutcome(
        plan=name,
        loads=cost.loads,
        drains=cost.drains,
        load_gib=cost.load_bytes / 2**30,
        move_s=move_s,
        served_if_nothing_moves=estimate(units, models, before, estimator).served_share,
        served_in_window=during,
        served_after=estimate(units, models, after, estimator).served_share,
    )


def _replayed(
    units: Sequence[UnitCapacity],
    models: Sequence[PlacementModel],
    before: Plan,
    steps: Sequence[Step],
    estimator: Estimator,
) -> tuple[float, float]:
    """Seconds and share served when loads follow each other within a unit, units work side by side, and a step waits
    for all drains before it. A model is served by a unit from the end of its load to the start of its drain.
    """
    state = {u.unit_id: {p.model: p.quota_blocks for p in before.models_of(u.unit_id)} for u in units}
    by_name = {m.model: m for m in models}
    free_s: dict[str, float] = {u.unit_id: 0.0 for u in units}
    barrier_s = 0.0
    changes: list[tuple[float, Step]] = []
    for step in steps:
        match step:
            case LoadModel(unit_id=unit_id, model=model):
                start_s = max(free_s[unit_id], barrier_s)
                free_s[unit_id] = start_s + by_name[model].spec.weight_bytes / LOAD_BYTES_PER_S
                changes.append((free_s[unit_id], step))
            case DrainModel(unit_id=unit_id):
                start_s = max(free_s.values())  # only when what replaces it is there
                changes.append((start_s, step))
                free_s[unit_id] = barrier_s = start_s + DRAIN_S
            case SetQuotas():
                pass
    moved_s = max((at for at, _ in changes), default=0.0)
    assert moved_s <= WINDOW_S, moved_s
    served, now_s = 0.0, 0.0
    for at_s, step in sorted(changes, key=lambda change: change[0]):
        served += (at_s - now_s) * _served_share(units, models, state, estimator) if at_s > now_s else 0.0
        now_s = at_s
        if isinstance(step, LoadModel):
            state[step.unit_id][step.model] = step.quota_blocks
        elif isinstance(step, DrainModel):
            del state[step.unit_id][step.model]
    served += (WINDOW_S - now_s) * _served_share(units, models, state, estimator)
    return moved_s, served / WINDOW_S


def _served_share(
    units: Sequence[UnitCapacity],
    models: Sequence[PlacementModel],
    state: Mapping[str, Mapping[str, int]],
    estimator: Estimator,
) -> float:
    return estimate(units, models, _as_plan(state), estimator).served_share


def _as_plan(state: Mapping[str, Mapping[str, int]]) -> Plan:
    return Plan(
        units=tuple(
            UnitPlan(unit_id=u, models=tuple(ModelPlacement(model=m, quota_blocks=q) for m, q in held.items()))
            for u, held in state.items()
        )
    )
