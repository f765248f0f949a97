"""What plans keep serving when the demand is not what they were made for: off by two, in bursts, with a node lost."""

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from planning.release import release_score
from planning.workloads import a100_nodes, chatlmsys, synthetic

from placement.estimation.plan_estimate import estimate
from placement.estimation.problem_arrays import Estimator
from placement.estimation.served_bound import most_served_of_nodes
from placement.nodes import FleetPlan
from placement.plan import Plan, UnitCapacity
from placement.problem import FleetSolver, PlacementModel

NUM_GPUS = 32
_DRAWS = 30
_NODE_GPUS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """Shares of the requests that are served within SLO: `planned` of the demand that was planned for, `errors` and
    `least_errors` with each model's demand off by two (mean and least of the draws), `errors_worst_model` of the model
    that has it worst then, `burst` with one model's doubled (mean over models), `lost_node` and `least_lost_node` with
    one node of four gone. `eq3`: of the demand that was planned for, by MuxServe's cost model. The bounds are what no
    plan exceeds, had it been made for the demand that came, or for the nodes that are left.
    """

    workload: str
    solver: str
    cpu_s: float
    gpus: int
    planned: float
    eq3: float
    errors: float
    least_errors: float
    errors_worst_model: float
    burst: float
    lost_node: float
    least_lost_node: float
    errors_bound: float
    lost_node_bound: float


def workloads() -> Mapping[str, Sequence[PlacementModel]]:
    release = {f"alpha {a:g}, at most {m}/s": synthetic(a, m) for a in (0.9, 2.1) for m in (20, 40)}
    return release | {f"ChatLMSYS, load {load}": chatlmsys(load) for load in (800, 1200)}


def keepings(solvers: Mapping[str, FleetSolver], estimator: Estimator, *, quick: bool) -> Iterator[Keeping]:
    for workload, models in list(workloads().items())[:: 4 if quick else 1]:
        draws = [_off_by_two(models, seed) for seed in range(5 if quick else _DRAWS)]
        errors_bound = _mean([_bound(NUM_GPUS, asked, estimator) for asked in draws])
        lost_node_bound = _bound(NUM_GPUS - _NODE_GPUS, models, estimator)
        for name, solver in solvers.items():
            started_s = time.process_time()
            layout = solver.lay_out([a100_nodes(NUM_GPUS)], models)
            cpu_s = time.process_time() - started_s
            kept = _keeping(workload, name, cpu_s, layout, models, draws, estimator)
            yield replace(kept, errors_bound=errors_bound, lost_node_bound=lost_node_bound)


def _keeping(
    workload: str,
    solver: str,
    cpu_s: float,
    layout: FleetPlan,
    models: Sequence[PlacementModel],
    draws: Sequence[Sequence[PlacementModel]],
    estimator: Estimator,
) -> Keeping:
    units, plan = layout.units, layout.plan
    errors = [estimate(units, asked, plan, estimator) for asked in draws]
    bursts = [estimate(units, _times(models, {m.model: 2.0}), plan, estimator).served_share for m in models]
    return Keeping(
        workload=workload,
        solver=solver,
        cpu_s=cpu_s,
        gpus=layout.num_gpus,
        planned=estimate(units, models, plan, estimator).served_share,
        eq3=release_score(units, plan, models, num_gpus=NUM_GPUS).served_share if not plan.unplaced else 0.0,
        errors=_mean([e.served_share for e in errors]),
        least_errors=min(e.served_share for e in errors),
        errors_worst_model=_mean([e.worst_share for e in errors]),
        burst=_mean(bursts),
        lost_node=_mean(lost := _after_losses(units, models, plan, estimator)),
        least_lost_node=min(lost),
        errors_bound=1.0,
        lost_node_bound=1.0,
    )


def _bound(num_gpus: int, models: Sequence[PlacementModel], estimator: Estimator) -> float:
    asked_per_s = sum(m.demand.rate_per_s for m in models)
    return min(1.0, most_served_of_nodes([a100_nodes(num_gpus)], models, estimator) / asked_per_s)


def _off_by_two(models: Sequence[PlacementModel], seed: int) -> Sequence[PlacementModel]:
    """Draws that the planner's own scenarios do not have."""
    draw = random.Random(1000 + seed)
    return _times(models, {m.model: draw.choice((0.5, 2.0)) for m in models})


def _times(models: Sequence[PlacementModel], factors: Mapping[str, float]) -> Sequence[PlacementModel]:
    return [m.times(factors.get(m.model, 1.0)) for m in models]


def _after_losses(
    units: Sequence[UnitCapacity], models: Sequence[PlacementModel], plan: Plan, estimator: Estimator
) -> list[float]:
    """One for each node that the fleet has, in use or not."""
    nodes = [f"a100/{node}" for node in range(NUM_GPUS // _NODE_GPUS)]
    return [estimate([u for u in units if u.node != node], models, plan, estimator).served_share for node in nodes]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
