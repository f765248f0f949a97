"""Plans of every solver in the fleet simulator: does the estimate order plans as the simulation does?"""

import itertools
import random
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from deploy.fleet_file.model_catalog import expected_demand
from deploy.fleet_file.settings import FleetFile, read_fleet_file
from deploy.planning.fleet_planning import plan_fleet
from deploy.simulation.deployments import Deployment, deploy_fleet
from deploy.simulation.runs import RunOptions, attainment_of, request_attainment_of, run_fleet
from deploy.simulation.streams import RequestStream, demand_stream, trace_stream
from placement.demand import ModelDemand
from router.limits import GatewayLimits
from traces.record import TraceRecord

_FEWEST_GAPS = 10  # of which a variation says anything


def demand_of_trace(
    records: Iterable[TraceRecord], *, duration_s: float, default_model: str
) -> tuple[ModelDemand, ...]:
    """Demand per model, by name, of a trace that covers `duration_s`; requests without a model are the default's."""
    assert duration_s > 0, "a rate needs a duration"
    by_model: defaultdict[str, list[TraceRecord]] = defaultdict(list)
    for record in records:
        by_model[record.model or default_model].append(record)
    return tuple(
        ModelDemand(
            model=model,
            rate_per_s=len(requests) / duration_s,
            prompt_tokens=sum(r.input_tokens for r in requests) / len(requests),
            output_tokens=sum(r.output_tokens for r in requests) / len(requests),
            arrival_cv=_cv([r.arrival_s for r in requests]),
        )
        for model, requests in sorted(by_model.items())
    )


def _cv(arrivals_s: Sequence[float]) -> float:
    """Poisson's where too few requests tell."""
    ordered = sorted(arrivals_s)
    gaps_s = [after - before for before, after in itertools.pairwise(ordered)]
    mean_s = statistics.fmean(gaps_s) if len(gaps_s) >= _FEWEST_GAPS else 0.0
    return statistics.stdev(gaps_s) / mean_s if mean_s > 0 else 1.0


SOLVERS = ("search", "spatial", "memory_greedy", "muxserve")
_MODELS_FOLDER = Path(__file__).resolve().parents[2] / "examples" / "models"
_SIZES = ("llama-7b", "llama-7b", "llama-13b", "llama-7b", "llama-13b", "llama-7b")


_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPlan:
    """`least_headroom`: the smallest of the plan's units, by the estimate."""

    workload: str
    solver: str
    replicas: int
    estimated_share: float
    least_headroom: float
    simulated_attainment: float
    simulated_request_attainment: float
    goodput_per_s: float
    requests: int


def simulated_plans(folder: Path, *, duration_s: float, servegen: Path | None, quick: bool) -> Iterator[SimulatedPlan]:
    """`folder` is where fleet files are written."""
    for rate_per_s in (12.0, 24.0) if quick else (12.0, 24.0, 40.0):
        fleet = _power_law_fleet(folder, rate_per_s)
        stream = demand_stream([expected_demand(m) for m in fleet.models], duration_s=duration_s, seed=1)
        yield from _plans(f"power law, {rate_per_s:g}/s", fleet, stream)
    if servegen is None:
        return
    shares = pd.read_parquet(servegen, columns=["model"])["model"].value_counts(normalize=True).to_dict()
    day = trace_stream(servegen, shares, seed=1, spread_ticks=False)
    for hour in (0,) if quick else (0, 2, 4, 6, 8, 10):
        stream = _from(day, hour * _HOUR_S, duration_s * 60).at_rate(4.0).first(None, duration_s)
        yield from _plans(f"ServeGen, hour {hour}", _trace_fleet(folder, stream), stream)


def rank_correlation(plans: Sequence[SimulatedPlan]) -> float:
    """Spearman's, of what the estimate says (the share served, then the headroom) and the simulated attainment."""
    from scipy.stats import spearmanr  # half a second that who compares no plans is spared

    estimated = sorted({_by_estimate(p) for p in plans})
    ranks = [estimated.index(_by_estimate(p)) for p in plans]
    return float(spearmanr(ranks, [p.simulated_attainment for p in plans]).statistic)


def _by_estimate(plan: SimulatedPlan) -> tuple[float, float]:
    return round(plan.estimated_share, 4), plan.least_headroom


def _plans(workload: str, fleet: FleetFile, stream: RequestStream) -> Iterator[SimulatedPlan]:
    limits = GatewayLimits(max_queued=fleet.gateway.max_queued_requests, hold_s=fleet.gateway.hold_s)
    for solver in SOLVERS:
        named = fleet.model_copy(update={"placement": fleet.placement.model_copy(update={"solver": solver})})
        deployed = deploy_fleet(named, Deployment(name=solver, policy="mux"))
        outcome = run_fleet(deployed, stream, RunOptions(limits=limits, gateways=1))
        attained = attainment_of(outcome)
        planned = plan_fleet(named).estimate()
        yield SimulatedPlan(
            workload=workload,
            solver=solver,
            replicas=sum(m.replicas for m in planned.models),
            estimated_share=planned.served_share,
            least_headroom=min(u.headroom for u in planned.units),
            simulated_attainment=attained,
            simulated_request_attainment=request_attainment_of(outcome),
            goodput_per_s=attained * stream.rate_per_s,
            requests=stream.count,
        )


def _from(stream: RequestStream, start_s: float, span_s: float) -> RequestStream:
    """A part of a stream, from 0 on."""

    def records() -> Iterator[TraceRecord]:
        within = (r for r in stream.records() if start_s <= r.arrival_s < start_s + span_s)
        return (replace(r, arrival_s=r.arrival_s - start_s) for r in within)

    times_s = [r.arrival_s for r in records()]
    return replace(stream, records=records, count=len(times_s), span_s=times_s[-1])


def _power_law_fleet(folder: Path, rate_per_s: float) -> FleetFile:
    """Ten models on eight A100; popularity (alpha 0.9) is not tied to size."""
    draw = random.Random(7)
    weights = [(i + 1) ** -0.9 for i in range(10)]
    draw.shuffle(weights)
    demands = [
        ModelDemand(model=f"m{i}", rate_per_s=rate_per_s * w / sum(weights), prompt_tokens=161, output_tokens=337)
        for i, w in enumerate(weights)
    ]
    return _fleet(folder, demands)


def _trace_fleet(folder: Path, stream: RequestStream) -> FleetFile:
    """The models that the trace names, with the rates, lengths and bursts that it has of them."""
    return _fleet(folder, list(demand_of_trace(stream.records(), duration_s=stream.span_s, default_model="default")))


def _fleet(folder: Path, demands: Sequence[ModelDemand]) -> FleetFile:
    lines = ["name: planner-benchmark", "models:"]
    for i, demand in enumerate(demands):
        lines += [
            f"  - id: {demand.model}",
            f"    source: {_MODELS_FOLDER / _SIZES[i % len(_SIZES)]}",
            "    slo: {ttft_s: 2.0, tbt_s: 0.1}",
            f"    demand: {{rate_per_s: {demand.rate_per_s}, prompt_tokens: {max(1, round(demand.prompt_tokens))}, "
            f"output_tokens: {max(1, round(demand.output_tokens))}, arrival_cv: {demand.arrival_cv:.3f}}}",
            "    replicas: {min: 1, max: 8}",
        ]
    lines += [
        "pools:",
        "  - {name: a100, device: simulated, gpu_type: A100-80G, gpus_per_node: 8, kv_memory: 32GiB}",
        "engine: {max_running_sequences: 128}",
    ]
    file = folder / "fleet.yaml"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read_fleet_file(file)
