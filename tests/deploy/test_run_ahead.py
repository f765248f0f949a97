"""Units that run ahead through stretches of decode decide, to the byte, what they decide step by step."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec
import pytest
from steps_ahead import launches_ahead

from deploy.fleet_file.model_catalog import expected_demand
from deploy.fleet_file.settings import FleetFile, parse_fleet_file
from deploy.simulation.deployments import DeployedFleet, Deployment, deploy_fleet
from deploy.simulation.fleet_run import FleetRun
from deploy.simulation.streams import demand_stream
from pdmux_actor.scheduling.policies.dispatch_policy import BatchPolicy, StretchPolicy
from pdmux_actor.scheduling.policies.registry import POLICIES, make_policy
from pdmux_actor.scheduling.scheduler import Scheduler
from router.limits import GatewayLimits
from traces.outcome import RequestOutcome

EXAMPLES = Path(__file__).parents[2] / "examples"
MODEL = """  - id: {id}
    source: ./models/{source}
    max_model_len: 8192
    slo: {{ttft_s: 1.0, tbt_s: {tbt_s}}}
    demand: {{rate_per_s: {rate}, prompt_tokens: {prompt}, output_tokens: {output}}}
"""
POOLS = """pools:
  - {{name: h, device: simulated, gpu_type: H100, gpus_per_node: {gpus}, mesh_gpus: 1, kv_memory: {kv}}}
engine: {{block_bytes: 64KiB}}
"""


def fleet(*models: dict[str, object], gpus: int, kv: str) -> FleetFile:
    text = "name: test\nmodels:\n" + "".join(MODEL.format(**m) for m in models) + POOLS.format(gpus=gpus, kv=kv)
    return parse_fleet_file(text, name="test.yaml", base=EXAMPLES)


LARGE = {"id": "large", "source": "llama-3.1-8b", "tbt_s": 0.05, "rate": 1.0, "prompt": 600, "output": 180}
SMALL = {"id": "small", "source": "qwen2.5-1.5b", "tbt_s": 0.05, "rate": 1.5, "prompt": 300, "output": 60}
CASES = {
    "one model, long answers": (fleet({**LARGE, "rate": 0.8}, gpus=1, kv="4GiB"), 4.0),
    "two models of a unit": (fleet(LARGE, SMALL, gpus=1, kv="6GiB"), 3.0),
    "two units, targets that steps miss": (fleet({**SMALL, "tbt_s": 0.004, "rate": 4.0}, gpus=2, kv="2GiB"), 3.0),
    "requests that wait at the gateway": (fleet({**LARGE, "rate": 20.0, "output": 90}, gpus=1, kv="1GiB"), 1.5),
    "three models, long prompts": (
        fleet({**LARGE, "rate": 0.6, "prompt": 5000}, SMALL, {**SMALL, "id": "third", "rate": 0.7}, gpus=1, kv="9GiB"),
        4.0,
    ),
    "prompts that wait in their unit": (
        fleet({**LARGE, "rate": 5.0, "prompt": 5000, "output": 90}, {**SMALL, "rate": 2.0}, gpus=1, kv="20GiB"),
        2.0,
    ),
    "four units, each with some of the models": (
        fleet({**LARGE, "rate": 3.0}, {**LARGE, "id": "rare", "rate": 0.5}, {**SMALL, "rate": 6.0}, gpus=4, kv="2GiB"),
        1.5,
    ),
}


@dataclass
class Run:
    outcomes: list[RequestOutcome]
    logs: list[bytes]
    loads: list[object]
    events: int
    steps: int


@cache  # planned once for the runs that are compared, of which each makes its own units
def deployed(case: str, policy: str) -> DeployedFleet:
    return deployed_with(case, policy, keeps_accounts=True)


def deployed_with(case: str, policy: str, **settings: object) -> DeployedFleet:
    scheduler = {"quota_period_s": 0.5, "decision_log_entries": 1 << 20, **settings}
    return deploy_fleet(CASES[case][0], Deployment(name=policy, policy=policy, scheduler=scheduler))


def run(case: str, policy: str, *, run_ahead: bool, fleet_of_case: DeployedFleet | None = None) -> Run:
    asked, duration_s = CASES[case]
    demands = [expected_demand(m) for m in asked.models]
    fleet_of_case = fleet_of_case or deployed(case, policy)
    outcomes: list[RequestOutcome] = []
    whole = FleetRun(
        models=fleet_of_case.models,
        build_units=fleet_of_case.build,
        stream=demand_stream(demands, duration_s=duration_s, seed=2),
        limits=GatewayLimits(),
        gateways=2,
        on_outcome=outcomes.append,
        run_ahead=run_ahead,
    )
    ended = whole.run()
    schedulers = [unit._engine._scheduler for unit in whole._units]
    for scheduler in schedulers:
        scheduler.check_integrity()
    return Run(
        outcomes=outcomes,
        logs=[msgspec.json.encode(scheduler.log.decisions()) for scheduler in schedulers],
        loads=[scheduler.load_report() for scheduler in schedulers],
        events=ended.events,
        steps=ended.steps,
    )


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_run_ahead__any_policy__same_decisions_tokens_and_reports_to_the_byte(policy, case):
    ahead, stepwise = (run(case, policy, run_ahead=on) for on in (True, False))

    assert ahead.logs == stepwise.logs
    assert ahead.outcomes == stepwise.outcomes
    assert ahead.loads == stepwise.loads
    assert (ahead.events, ahead.steps) == (stepwise.events, stepwise.steps)
    assert ahead.steps > 20


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_run_ahead__nobody_reads_accounts__same_outcomes_to_the_byte(policy):
    case = "prompts that wait in their unit"
    deployment = deploy_fleet(CASES[case][0], Deployment(name=policy, policy=policy))
    assert not any(design.settings.keeps_accounts for _, design in deployment.designs)

    unread = run(case, policy, run_ahead=True, fleet_of_case=deployed_with(case, policy, keeps_accounts=False))
    read = run(case, policy, run_ahead=True)

    assert unread.outcomes == read.outcomes
    assert (unread.events, unread.steps) == (read.events, read.steps)
    assert unread.logs == [b"[]"]
    assert read.logs != unread.logs


STRETCH, BATCH = (
    [(case, name) for name in sorted(POLICIES) if isinstance(make_policy(name), kind)]
    for case, kind in (("one model, long answers", StretchPolicy), ("three models, long prompts", BatchPolicy))
)


@pytest.mark.parametrize(("case", "policy"), [*STRETCH, *BATCH])
def test_run_ahead__policy_that_allows_it__many_steps_need_no_wake(case, policy, monkeypatch):
    taken = launches_ahead(monkeypatch)
    steps = run(case, policy, run_ahead=True).steps

    assert sum(taken) > 0.4 * steps


def test_run_ahead__prompts_wait_behind_one__steps_beside_it_need_no_wake(monkeypatch):
    taken = launches_ahead(monkeypatch, only_while_prompts_wait=True)
    steps = run("prompts that wait in their unit", "mux", run_ahead=True).steps

    assert sum(taken) > 0.1 * steps


def test_load_for_gateways__in_place_of_the_whole_report__same_decisions_and_outcomes(monkeypatch):
    case = "requests that wait at the gateway"
    brief = run(case, "mux", run_ahead=True)
    monkeypatch.setattr(Scheduler, "load_for_gateways", Scheduler.load_report)
    whole = run(case, "mux", run_ahead=True)

    assert brief == whole
