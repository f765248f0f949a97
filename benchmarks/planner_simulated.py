"""Plans of every solver in the fleet simulator: does the estimate order plans as the simulation does?"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
from scipy.stats import spearmanr

from deploy.planning import plan_fleet
from deploy.settings import FleetFile, read_fleet_file
from deploy.simulation.deployments import Deployment, deploy_fleet
from deploy.simulation.runs import RunOptions, attainment_of, run_fleet
from deploy.simulation.streams import RequestStream, demand_stream, trace_stream
from placement.demand import ModelDemand
from router.limits import GatewayLimits

SOLVERS = ("search", "spatial", "memory_greedy", "muxserve")
_MODELS_FOLDER = Path(__file__).resolve().parents[1] / "examples" / "models"
_SIZES = ("llama-7b", "llama-7b", "llama-13b", "llama-7b", "llama-13b", "llama-7b")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPlan:
    workload: str
    solver: str
    estimated_share: float
    simulated_attainment: float
    goodput_per_s: float
    requests: int


def simulated_plans(folder: Path, *, duration_s: float, servegen: Path | None, quick: bool) -> Iterator[SimulatedPlan]:
    """`folder` is where fleet files are written."""
    rates = (12.0, 24.0) if quick else (6.0, 12.0, 18.0, 24.0, 32.0)
    for rate_per_s in rates:
        fleet = _power_law_fleet(folder, rate_per_s)
        stream = demand_stream(_demands(fleet), duration_s=duration_s, seed=1)
        yield from _plans(f"power law, {rate_per_s:g}/s", fleet, stream)
    if servegen is not None:
        shares = pd.read_parquet(servegen, columns=["model"])["model"].value_counts(normalize=True).to_dict()
        for rate_per_s in (3.0,) if quick else (3.0, 5.0, 8.0):
            stream = (
                trace_stream(servegen, shares, seed=1, spread_ticks=False)
                .first(None, duration_s * 60)
                .at_rate(rate_per_s)
            )
            stream = stream.first(None, duration_s)
            yield from _plans(f"ServeGen day, {rate_per_s:g}/s", _trace_fleet(folder, stream), stream)


def rank_correlation(plans: Sequence[SimulatedPlan]) -> float:
    """Spearman's, of estimated share and simulated attainment over all plans."""
    return float(spearmanr([p.estimated_share for p in plans], [p.simulated_attainment for p in plans]).statistic)


def _plans(workload: str, fleet: FleetFile, stream: RequestStream) -> Iterator[SimulatedPlan]:
    limits = GatewayLimits(max_queued=fleet.gateway.max_queued_requests, hold_s=fleet.gateway.hold_s)
    for solver in SOLVERS:
        named = fleet.model_copy(update={"placement": fleet.placement.model_copy(update={"solver": solver})})
        deployed = deploy_fleet(named, Deployment(name=solver, policy="mux"))
        outcome = run_fleet(deployed, stream, RunOptions(limits=limits, gateways=1))
        attained = attainment_of(outcome)
        yield SimulatedPlan(
            workload=workload,
            solver=solver,
            estimated_share=plan_fleet(named).estimate().served_share,
            simulated_attainment=attained,
            goodput_per_s=attained * stream.rate_per_s,
            requests=stream.count,
        )


def _demands(fleet: FleetFile) -> list[ModelDemand]:
    return [
        ModelDemand(
            model=m.id,
            rate_per_s=m.demand.rate_per_s,
            prompt_tokens=m.demand.prompt_tokens,
            output_tokens=m.demand.output_tokens,
        )
        for m in fleet.models
    ]


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
    """The models that the trace names, with the rates and lengths that it has of them."""
    return _fleet(folder, [replace(d, rate_per_s=max(1e-3, d.rate_per_s)) for d in _of_trace(stream)])


def _of_trace(stream: RequestStream) -> list[ModelDemand]:
    counts: dict[str, list[int]] = {}
    for record in stream.records():
        counted = counts.setdefault(record.model or "default", [0, 0, 0])
        counted[0] += 1
        counted[1] += record.input_tokens
        counted[2] += record.output_tokens
    return [
        ModelDemand(model=model, rate_per_s=n / stream.span_s, prompt_tokens=prompt / n, output_tokens=output / n)
        for model, (n, prompt, output) in sorted(counts.items())
    ]


def _fleet(folder: Path, demands: Sequence[ModelDemand]) -> FleetFile:
    lines = ["name: planner-benchmark", "models:"]
    for i, demand in enumerate(demands):
        lines += [
            f"  - id: {demand.model}",
            f"    source: {_MODELS_FOLDER / _SIZES[i % len(_SIZES)]}",
            "    slo: {ttft_s: 2.0, tbt_s: 0.1}",
            f"    demand: {{rate_per_s: {demand.rate_per_s}, prompt_tokens: {max(1, round(demand.prompt_tokens))}, "
            f"output_tokens: {max(1, round(demand.output_tokens))}}}",
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
