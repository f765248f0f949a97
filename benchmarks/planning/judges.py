"""Plans for MuxServe's release-like fleets under three judges: our estimate, its Eq. 3, and the fleet simulator."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from planning.flip import LEAD_IN_S, LedFleet, worst_share
from planning.release import release_score
from planning.workloads import a100_nodes, synthetic

from deploy.simulation.streams import demand_stream
from placement.estimation.plan_estimate import estimate
from placement.estimation.problem_arrays import Estimator
from placement.nodes import FleetPlan, NodePool
from placement.plan import Plan, UnitCapacity
from placement.problem import FleetSolver, PlacementModel
from placement.solvers.memory_greedy import MemoryGreedySolver
from placement.solvers.muxserve import MuxServeSolver
from placement.solvers.search import SearchSolver
from placement.solvers.spatial import SpatialSolver


class Scorer(Protocol):
    def score(self, units: Sequence[UnitCapacity], models: Sequence[PlacementModel], plan: Plan) -> tuple[float, ...]:
        """Scores what the plan would serve; more is better."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateSolver:
    """The plan of each of `solvers` that `scorer` likes best; the first of equals."""

    solvers: Sequence[FleetSolver]
    scorer: Scorer

    def lay_out(self, pools: Sequence[NodePool], models: Sequence[PlacementModel]) -> FleetPlan:
        layouts = [solver.lay_out(pools, models) for solver in self.solvers]
        return max(layouts, key=lambda layout: self.scorer.score(layout.units, models, layout.plan))


NUM_GPUS = 32
_MESH_GPUS = 2  # of memory_greedy, which does not choose them: the smallest that hold every model
_LayOut = Callable[[Sequence[PlacementModel]], FleetPlan]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Shares of the requests that are served within SLO: by our estimate, by MuxServe's cost model, and of `requests`
    simulated ones; `worst_model` is that of the model that has it worst. A request counts as within SLO by its
    first token and 99 % of its gaps.
    """

    workload: str
    solver: str
    cpu_s: float
    gpus: int
    estimated: float
    eq3: float
    simulated: float
    worst_model: float
    requests: int


def judgements(estimator: Estimator, *, window_s: float, quick: bool) -> Iterator[Judgement]:
    for alpha, most_per_s in ((0.9, 20), (2.1, 20), (0.9, 40), (2.1, 40))[:: 2 if quick else 1]:
        models = synthetic(alpha, most_per_s)
        for name, lay_out in _solvers(estimator).items():
            yield _judged(f"alpha {alpha:g}, at most {most_per_s}/s", name, lay_out, models, estimator, window_s)


def _solvers(estimator: Estimator) -> Mapping[str, _LayOut]:
    """The default first."""
    chosen: dict[str, FleetSolver] = {
        "search": SearchSolver(estimator=estimator),
        "fewest_gpus": SearchSolver(estimator=estimator, fewest_gpus=True),
        "muxserve": MuxServeSolver(estimator=estimator),
        "spatial": SpatialSolver(estimator=estimator),
    }
    pool = a100_nodes(NUM_GPUS)
    units = tuple(
        pool.unit(node, gpu, _MESH_GPUS)
        for node in range(pool.num_nodes)
        for gpu in range(0, pool.gpus_per_node, _MESH_GPUS)
    )
    own: dict[str, _LayOut] = {name: partial(solver.lay_out, [pool]) for name, solver in chosen.items()}
    own["memory_greedy"] = lambda models: FleetPlan(units=units, plan=MemoryGreedySolver().solve(units, models, None))
    return own


def _judged(
    workload: str,
    solver: str,
    lay_out: _LayOut,
    models: Sequence[PlacementModel],
    estimator: Estimator,
    window_s: float,
) -> Judgement:
    started_s = time.process_time()
    layout = lay_out(models)
    cpu_s = time.process_time() - started_s
    stream = demand_stream([m.demand for m in models], duration_s=LEAD_IN_S + window_s, seed=1)
    judged = LedFleet(layout.units, models, layout.plan).moved_to(layout.plan, stream).judged
    eq3 = 0.0
    if not layout.plan.unplaced:
        eq3 = release_score(layout.units, layout.plan, models, num_gpus=NUM_GPUS).served_share
    return Judgement(
        workload=workload,
        solver=solver,
        cpu_s=cpu_s,
        gpus=sum(u.num_gpus for u in layout.units if layout.plan.models_of(u.unit_id)),
        estimated=estimate(layout.units, models, layout.plan, estimator).served_share,
        eq3=eq3,
        simulated=sum(r.attained for r in judged) / len(judged),
        worst_model=worst_share(judged),
        requests=len(judged),
    )
