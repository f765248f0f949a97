"""Plans from a running one within the controller's budget: how long they take, and what they serve."""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from planning.workloads import a100_nodes, mixed_fleet

from deploy.planning.planner_program import SearchTime
from placement.estimation.plan_estimate import estimate
from placement.estimation.problem_arrays import Estimator
from placement.estimation.served_bound import most_served
from placement.solvers.search import SearchSolver

BUDGET_S = 1.0
_MESH_GPUS = 2
_FIRST_PLAN_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Replanned:
    """`change` is what came after the first plan. Shares are of the new demand, within SLO: of the plan that runs,
    of the new one, and of the linear bound. `cpu_s` are seconds of this process; `worst_share` is of the
    model of the new plan that has it worst.
    """

    gpus: int
    models: int
    change: str
    budget_s: float
    cpu_s: float
    kept_share: float
    served_share: float
    bound_share: float
    worst_share: float


def replanned(num_gpus: int, num_models: int, estimator: Estimator) -> Iterator[Replanned]:
    pool = a100_nodes(num_gpus)
    units = [
        pool.unit(node, gpu, _MESH_GPUS)
        for node in range(pool.num_nodes)
        for gpu in range(0, pool.gpus_per_node, _MESH_GPUS)
    ]
    models = mixed_fleet(num_models, seed=1, mean_rate_per_s=8.0 * 0.35 * num_gpus / num_models)
    current = SearchSolver(estimator=estimator, is_time_up=_after(_FIRST_PLAN_S)).solve(units, models, None)
    draw = random.Random(2)
    search_time = SearchTime(time.process_time)  # as the planner's process has it: it learns what follows a search
    for change, factors in (
        ("none", [1.0] * len(models)),
        ("off by two", [draw.choice((0.5, 2.0)) for _ in models]),
        ("four times as much", [4.0] * len(models)),
    ):
        asked = [m.times(factor) for m, factor in zip(models, factors, strict=True)]
        started_s = time.process_time()
        search_time.begin(BUDGET_S)
        plan = SearchSolver(estimator=estimator, is_time_up=search_time.is_up).solve(units, asked, current)
        search_time.end()
        cpu_s = time.process_time() - started_s
        found = estimate(units, asked, plan, estimator)
        yield Replanned(
            gpus=num_gpus,
            models=num_models,
            change=change,
            budget_s=BUDGET_S,
            cpu_s=cpu_s,
            kept_share=estimate(units, asked, current, estimator).served_share,
            served_share=found.served_share,
            bound_share=most_served(units, asked, estimator) / found.rate_per_s,
            worst_share=found.worst_share,
        )


def _after(seconds: float) -> Callable[[], bool]:
    """Counts CPU time: other work on the machine is not the search's."""
    started_s = time.process_time()
    return lambda: time.process_time() - started_s > seconds
