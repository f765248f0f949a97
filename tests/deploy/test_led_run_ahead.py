"""Units that a control loop leads run ahead, too: models move, sleep and lose their nodes as they do step by step."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest
from steps_ahead import launches_ahead

from deploy.fleet_file.model_catalog import expected_demand
from deploy.fleet_file.settings import FleetFile, parse_fleet_file
from deploy.simulation.control import LoadTimes
from deploy.simulation.deployments import Deployment, deploy_fleet
from deploy.simulation.fleet_run import FleetRun
from deploy.simulation.leased_unit import LeasedUnit
from deploy.simulation.streams import demand_stream
from placement.solvers.registry import SOLVERS
from placement.solvers.search import SearchSolver
from router.limits import GatewayLimits
from traces.outcome import Ending, RequestOutcome
from traces.record import TraceRecord

EXAMPLES = Path(__file__).parents[2] / "examples"
FLEET = """
name: led
models:
  - id: a
    source: ./models/llama-3.1-8b
    max_model_len: 8192
    slo: {ttft_s: 1.0, tbt_s: 0.05}
    demand: {rate_per_s: 3.0, prompt_tokens: 900, output_tokens: 120}
    replicas: {min: LEAST, max: 3, idle_after_s: 4}
  - id: b
    source: ./models/qwen2.5-1.5b
    max_model_len: 8192
    slo: {ttft_s: 1.0, tbt_s: 0.05}
    demand: {rate_per_s: 0.5, prompt_tokens: 300, output_tokens: 200}
    replicas: {min: LEAST, max: 3, idle_after_s: 4}
pools:
  - POOL
placement: {replan_every_s: 3, min_residency_s: 3, max_moves_per_min: 60}
engine: {block_bytes: 64KiB}
"""
FIXED = (
    "{name: p, device: simulated, gpu_type: A40, gpus_per_node: 3, kv_memory: 3GiB, device_memory: 23GiB,"
    " host_memory: 30GiB}"
)
# Nodes are lost every few seconds, with the requests on them.
SPOT = (
    "{name: p, device: simulated, gpu_type: H100, kv_memory: 8GiB, nodes: {min: 1, max: 4}, scaling: {cooldown_s: 4,"
    " provision_s: 2, spot: {price_per_hour: 1.0, lost_every_s: 60, notice_s: 1}}}"
)
SMALL_POOL = FIXED.replace("kv_memory: 3GiB", "kv_memory: 1GiB")


@dataclass(frozen=True, kw_only=True)
class Case:
    pool: str
    policy: str = "mux"
    least: int = 1
    output_tokens: int = 120
    max_model_len: int = 8192
    seed: int = 4


CASES = {
    "popularity flips": Case(pool=FIXED, seed=3),
    "they sleep": Case(pool=FIXED, policy="chunked_prefill", least=0),
    "nodes are lost": Case(pool=SPOT),
    "the only node is lost in the first seconds": Case(
        pool=SPOT, policy="static_split", least=0, output_tokens=20, seed=11
    ),
    "who decodes is preempted for the others' rows": Case(
        pool=SMALL_POOL, policy="static_split", output_tokens=300, max_model_len=4096, seed=22
    ),
}
SPAN_S = 8.0


@pytest.fixture(scope="module", autouse=True)
def brief_searches() -> Iterator[None]:
    def make(estimator, is_time_up):
        return SearchSolver(estimator=estimator, is_time_up=is_time_up, rounds=20)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deploy.simulation.control.SOLVERS", {"search": replace(SOLVERS["search"], make=make)})
        yield


def fleet(case: Case) -> FleetFile:
    text = FLEET.replace("POOL", case.pool).replace("LEAST", str(case.least))
    text = text.replace("max_model_len: 8192", f"max_model_len: {case.max_model_len}")
    text = text.replace("output_tokens: 120", f"output_tokens: {case.output_tokens}")
    parsed = parse_fleet_file(text, name="led.yaml", base=EXAMPLES)
    (pool_section,) = parsed.pools
    if pool_section.scaling is None or pool_section.scaling.spot is None:
        return parsed
    spot = pool_section.scaling.spot.model_copy(update={"lost_every_s": 6.0})  # a file may say a minute at least
    scaling = pool_section.scaling.model_copy(update={"spot": spot})
    return parsed.model_copy(update={"pools": (pool_section.model_copy(update={"scaling": scaling}),)})


def flipping(asked: FleetFile, seed: int):
    """What is expected, and then the same with the models in each other's place, after a pause."""
    stream = demand_stream([expected_demand(m) for m in asked.models], duration_s=SPAN_S, seed=seed)
    before = list(stream.records())
    other = {"a": "b", "b": "a"}
    after = [replace(r, arrival_s=r.arrival_s + SPAN_S + 6, model=other[r.model or ""]) for r in before]
    records: list[TraceRecord] = [*before, *after]
    return replace(stream, records=lambda: iter(records), count=len(records), span_s=records[-1].arrival_s)


def run(case: Case, *, run_ahead: bool):
    asked = fleet(case)
    scheduler = {"quota_period_s": 0.5, "decision_log_entries": 1 << 20}
    deployment = Deployment(name="led", policy=case.policy, scheduler=scheduler, seed=case.seed)
    deployed = deploy_fleet(asked, deployment, loads=LoadTimes(bytes_per_s=2e10, fixed_s=0.3))
    outcomes: list[RequestOutcome] = []
    whole = FleetRun(
        models=deployed.models,
        build_units=deployed.build,
        stream=flipping(asked, case.seed),
        limits=GatewayLimits(hold_s=20.0),
        gateways=2,
        view_updates=deployed.view_updates,
        on_outcome=outcomes.append,
        run_ahead=run_ahead,
    )
    ended = whole.run()
    schedulers = [unit._engine._scheduler for unit in whole._units if isinstance(unit, LeasedUnit)]
    logs = [msgspec.json.encode(scheduler.log.decisions()) for scheduler in schedulers]
    return outcomes, logs, [s.load_report() for s in schedulers], (ended.events, ended.steps), ended


@pytest.mark.parametrize("case", CASES)
def test_run_ahead__models_move__same_decisions_tokens_and_moves_to_the_byte(case, monkeypatch):
    taken = launches_ahead(monkeypatch)
    outcomes, logs, loads, counts, ended = run(CASES[case], run_ahead=True)
    num_ahead = sum(taken)
    stepwise_outcomes, stepwise_logs, stepwise_loads, stepwise_counts, stepwise = run(CASES[case], run_ahead=False)

    assert logs == stepwise_logs
    assert outcomes == stepwise_outcomes
    assert loads == stepwise_loads
    assert counts == stepwise_counts
    assert (ended.decisions, ended.node_use) == (stepwise.decisions, stepwise.node_use)
    assert num_ahead > 0.25 * ended.steps
    assert any(d.moves for d in ended.decisions) or ended.node_use is not None
    assert all(o.ending is Ending.FINISHED for o in outcomes)


def test_run_ahead__node_is_lost__requests_go_on_with_the_tokens_that_they_have():
    outcomes, _, _, _, ended = run(CASES["nodes are lost"], run_ahead=True)

    assert ended.node_use is not None
    assert ended.node_use.cut > 0
    assert all(o.output_tokens == o.requested_tokens for o in outcomes)
