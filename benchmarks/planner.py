"""The planner: against MuxServe's under its own cost model, against all plans there are, and against its size.

    python benchmarks/planner.py [--json FILE] [--quick] [--only PART,...]

Parts: same-cost-model, judges, wrong-demand, optimality, scale, running, simulator, flip.

Scale runs on one core; the simulator's ServeGen rows need --servegen FILE (a trace with models, such as
../shared/traces/servegen_multimodel_day0.parquet).
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

from planning.flip import WINDOW_S, flip_outcomes
from planning.judges import CandidateSolver, judgements
from planning.release import ReleaseEstimator, ReleaseScorer, release_score
from planning.running import replanned
from planning.simulated import SimulatedPlan, rank_correlation, simulated_plans
from planning.workloads import (
    ALPHAS,
    CHATLMSYS_LOADS,
    MAX_RATES_PER_S,
    a100_nodes,
    chatlmsys,
    mixed_fleet,
    small_fleet,
    synthetic,
)
from planning.wrong_demand import keepings
from report.command import make_parser, print_table, write_report
from report.machine_facts import machine_facts

from placement.estimation.model_floors import FLOOR
from placement.estimation.plan_estimate import estimate
from placement.estimation.problem_arrays import Estimator
from placement.estimation.served_bound import most_served_of_nodes
from placement.problem import FleetSolver, PlacementModel
from placement.solvers.exhaustive import ExhaustiveSolver
from placement.solvers.muxserve import MuxServeSolver
from placement.solvers.search import SearchSolver
from placement.solvers.spatial import SpatialSolver

Row = dict[str, object]
PARTS = ("same-cost-model", "judges", "wrong-demand", "optimality", "scale", "running", "simulator", "flip")
ESTIMATOR = Estimator(max_running_sequences=256)
# GPUs, models, and the CPU time that search gets (s); aims are 2 s for 128 GPUs, 30 s for 1,024, 300 s for 4,096.
SIZES = (
    (8, 4, 2.0),
    (32, 19, 2.0),
    (128, 76, 2.0),
    (256, 100, 8.0),
    (512, 150, 15.0),
    (1024, 300, 30.0),
    (4096, 1000, 100.0),
)


def same_cost_model(quick: bool) -> Iterator[Row]:
    workloads = {f"synthetic a{a:g} max {m}/s": synthetic(a, m) for m in MAX_RATES_PER_S for a in ALPHAS}
    workloads |= {f"ChatLMSYS {load}": chatlmsys(load) for load in CHATLMSYS_LOADS}
    costs = ReleaseEstimator()
    solvers: dict[str, FleetSolver] = {
        "muxserve": MuxServeSolver(estimator=costs),
        "spatial": SpatialSolver(estimator=costs),
        "search": CandidateSolver(
            solvers=[SearchSolver(estimator=costs, least_margin=margin, fewest_gpus=True) for margin in (1.0, 1.1)],
            scorer=ReleaseScorer(num_gpus=32),
        ),
    }
    for workload, models in list(workloads.items())[:: 4 if quick else 1]:
        for name, solver in solvers.items():
            started_s = time.process_time()
            layout = solver.lay_out([a100_nodes(32)], models)
            cpu_s = time.process_time() - started_s
            score = release_score(layout.units, layout.plan, models, num_gpus=32)
            yield {
                "part": "same-cost-model",
                "workload": workload,
                "solver": name,
                "cpu_s": cpu_s,
                "unplaced": len(layout.plan.unplaced),
                **asdict(score),
            }


def judges(quick: bool, window_s: float) -> Iterator[Row]:
    return ({"part": "judges", **asdict(found)} for found in judgements(ESTIMATOR, window_s=window_s, quick=quick))


def wrong_demand(quick: bool) -> Iterator[Row]:
    solvers: dict[str, FleetSolver] = {
        "search": SearchSolver(estimator=ESTIMATOR),
        "fewest_gpus": SearchSolver(estimator=ESTIMATOR, fewest_gpus=True),
        "muxserve": MuxServeSolver(estimator=ESTIMATOR),
        "spatial": SpatialSolver(estimator=ESTIMATOR),
    }
    return ({"part": "wrong-demand", **asdict(kept)} for kept in keepings(solvers, ESTIMATOR, quick=quick))


def running(quick: bool, largest: int) -> Iterator[Row]:
    """Times `solve` from a running plan with the controller's budget, after demand has changed."""
    sizes = [size for size in SIZES if size[0] in (32, 256, 1024, 4096) and size[0] <= (256 if quick else largest)]
    for num_gpus, num_models, _ in sizes:
        for outcome in replanned(num_gpus, num_models, ESTIMATOR):
            yield {"part": "running", **asdict(outcome)}


def optimality(quick: bool) -> Iterator[Row]:
    """Shares of the optimum's served requests; 1 is as good as the best plan there is. `bound` gaps are the optimum's
    own below the linear bound, in fleets whose optimum does not serve all: what of such a gap is real.
    """
    gaps, bound_gaps, seconds = [], [], [0.0, 0.0]
    fleets = 20 if quick else 200
    for seed in range(fleets):
        pool, models = small_fleet(seed)
        served = []
        for i, solver in enumerate(
            (SearchSolver(estimator=ESTIMATOR, fewest_gpus=True), ExhaustiveSolver(estimator=ESTIMATOR))
        ):
            started_s = time.process_time()
            layout = solver.lay_out([pool], models)
            seconds[i] += time.process_time() - started_s
            served.append(estimate(layout.units, models, layout.plan, ESTIMATOR).served_share)
        gaps.append(max(0.0, 1 - served[0] / served[1]) if served[1] > 0 else 0.0)
        if served[1] < 0.999:
            asked_per_s = sum(m.demand.rate_per_s for m in models)
            bound_gaps.append(1 - served[1] * asked_per_s / most_served_of_nodes([pool], models, ESTIMATOR))
    yield {
        "part": "optimality",
        "seed": f"0 to {fleets - 1}",
        "fleets": len(gaps),
        "mean_gap": sum(gaps) / len(gaps),
        "worst_gap": max(gaps),
        "fleets_not_optimal": sum(g > 0.001 for g in gaps),
        "fleets_overloaded": len(bound_gaps),
        "mean_bound_gap": sum(bound_gaps) / max(1, len(bound_gaps)),
        "worst_bound_gap": max(bound_gaps, default=0.0),
        "search_cpu_s": seconds[0],
        "exhaustive_cpu_s": seconds[1],
    }


def scale(quick: bool, largest: int) -> Iterator[Row]:
    """Twice: with demand that the fleet can serve, and with more than it can."""
    sizes = [size for size in SIZES if size[0] <= (128 if quick else largest)]
    for num_gpus, num_models, budget_s in sizes:
        for load, gpus_worth in (("light", 0.35), ("overload", 1.6)):
            models = mixed_fleet(num_models, seed=1, mean_rate_per_s=8.0 * gpus_worth * num_gpus / num_models)
            yield _scaled(num_gpus, models, load, budget_s)


def _scaled(num_gpus: int, models: list[PlacementModel], load: str, budget_s: float) -> Row:
    pools = [a100_nodes(num_gpus)]
    started_s = time.process_time()
    bound = most_served_of_nodes(pools, models, ESTIMATOR)
    bound_s, started_s = time.process_time() - started_s, time.process_time()

    def is_time_up() -> bool:
        return time.process_time() - started_s > 0.9 * budget_s

    layout = SearchSolver(estimator=ESTIMATOR, is_time_up=is_time_up, fewest_gpus=True).lay_out(pools, models)
    cpu_s = time.process_time() - started_s
    found = estimate(layout.units, models, layout.plan, ESTIMATOR)
    return {
        "part": "scale",
        "gpus": num_gpus,
        "models": len(models),
        "load": load,
        "budget_s": budget_s,
        "cpu_s": cpu_s,
        "bound_cpu_s": bound_s,
        "served_share": found.served_share,
        "bound_share": bound / found.rate_per_s,
        "gap": max(0.0, 1 - found.served_per_s / bound),
        "worst_share": found.worst_share,
        "starving": sum(m.served_share < FLOOR for m in found.models if m.rate_per_s > 0),
        "gpus_used": found.gpus_used,
        "unplaced": len(layout.plan.unplaced),
    }


def simulator(quick: bool, servegen: Path | None) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        duration_s = 30.0 if quick else 60.0
        plans: list[SimulatedPlan] = []
        for plan in simulated_plans(Path(folder), duration_s=duration_s, servegen=servegen, quick=quick):
            plans.append(plan)
            yield {"part": "simulator", **asdict(plan)}
    yield from _over_all(plans)


def _over_all(plans: Sequence[SimulatedPlan]) -> Iterator[Row]:
    for solver in dict.fromkeys(p.solver for p in plans):
        mine = [p for p in plans if p.solver == solver]
        requests = sum(p.requests for p in mine)
        attained = sum(p.simulated_attainment * p.requests for p in mine) / requests
        yield {
            "part": "simulator",
            "workload": "all",
            "solver": solver,
            "simulated_attainment": attained,
            "simulated_request_attainment": sum(p.simulated_request_attainment * p.requests for p in mine) / requests,
            "requests": requests,
        }
    correlation = rank_correlation(plans)
    yield {"part": "simulator", "workload": "all", "plans": len(plans), "rank_correlation": correlation}


def flip(quick: bool, seeds: Sequence[int]) -> Iterator[Row]:
    window_s = 60.0 if quick else WINDOW_S
    for seed in seeds[:1] if quick else seeds:
        for outcome in flip_outcomes(32, 24, seed=seed, mean_rate_per_s=3.0, window_s=window_s):
            yield {"part": "flip", "seed": seed, "window_s": window_s, **asdict(outcome)}


def _over_flips(rows: Sequence[Row]) -> Iterator[Row]:
    """Medians and spreads of all seeds that the file has, measured together or not."""
    flips = [row for row in rows if row["part"] == "flip" and "seed" in row]
    for plan in dict.fromkeys(str(row["plan"]) for row in flips):
        mine = [row for row in flips if row["plan"] == plan]
        shares = [float(str(row["served_in_window"])) for row in mine]
        yield {
            "part": "flip",
            "plan": plan,
            "seeds": len(mine),
            "median_served": median(shares),
            "least_served": min(shares),
            "most_served": max(shares),
        }


def main() -> None:
    parser = make_parser(__doc__, quick="fewer and smaller fleets")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--servegen", type=Path)
    parser.add_argument("--seeds", default="0,1,2,3,4", help="of part flip")
    parser.add_argument("--largest", type=int, default=4096, help="GPUs of the largest fleet of part scale")
    parser.add_argument("--window", type=float, default=20.0, help="seconds that part judges simulates")
    asked = parser.parse_args()
    parts: dict[str, Callable[[], Iterator[Row]]] = {
        "same-cost-model": lambda: same_cost_model(asked.quick),
        "judges": lambda: judges(asked.quick, asked.window),
        "wrong-demand": lambda: wrong_demand(asked.quick),
        "optimality": lambda: optimality(asked.quick),
        "scale": lambda: scale(asked.quick, asked.largest),
        "running": lambda: running(asked.quick, asked.largest),
        "simulator": lambda: simulator(asked.quick, asked.servegen),
        "flip": lambda: flip(asked.quick, [int(seed) for seed in asked.seeds.split(",")]),
    }
    rows: list[Row] = []
    for part in asked.only.split(","):
        found = list(parts[part]())
        rows += found
        kinds = {key: type(value) for row in found for key, value in row.items() if key != "part"}
        columns = {key: f"{{{key}:.3f}}" if kind is float else f"{{{key}}}" for key, kind in kinds.items()}
        print_table(found, columns, title=part, width=200)
    known = [*_other_rows(asked.json, rows), *rows]
    machine = {**machine_facts(), "time": "CPU seconds of one process"}
    write_report(asked.json, machine, [*known, *_over_flips(known)])


def _other_rows(file: Path | None, measured: Sequence[Row]) -> list[Row]:
    """Rows of parts and seeds that are not measured now stay in the file."""
    if file is None or not file.exists():
        return []
    now = {(row["part"], row.get("seed")) for row in measured}
    rows: list[Row] = json.loads(file.read_text(encoding="utf-8"))["rows"]
    return [row for row in rows if "seeds" not in row and (row["part"], row.get("seed")) not in now]


if __name__ == "__main__":
    main()
