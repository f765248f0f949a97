"""Pools that grow and shrink in virtual time: the product's control loop decides, nodes take a while to come."""

import json
from pathlib import Path

import pytest

from deploy.fleet_file.settings import FleetFile, parse_fleet_file
from deploy.simulation.control import LoadTimes
from deploy.simulation.deployments import Deployment, deploy_fleet
from deploy.simulation.fleet_outcome import FleetOutcome
from deploy.simulation.runs import RunOptions, run_fleet
from deploy.simulation.streams import RequestStream
from router.limits import GatewayLimits
from traces.record import TraceRecord

EXAMPLES = Path(__file__).parents[2] / "examples"
FLEET = """
name: breathing
models:
  - id: a
    source: ./models/llama-3.1-8b
    max_model_len: 8192
    slo: {ttft_s: 1.0, tbt_s: 0.2}
    demand: {rate_per_s: 2.0, prompt_tokens: 1000, output_tokens: 8}
    replicas: {min: 1, max: 3}
pools:
  - {name: p, device: simulated, gpu_type: A40, kv_memory: 8GiB, device_memory: 30GiB,
     nodes: {min: 1, max: 3}, scaling: {cooldown_s: 60, provision_s: 20, SCALING}}
placement: {solver: memory_greedy, replan_every_s: 10, min_residency_s: 5, max_moves_per_min: 30}
"""
MUX = Deployment(name="mux", policy="mux")


def fleet(scaling: str = "shadow: false") -> FleetFile:
    return parse_fleet_file(FLEET.replace("SCALING", scaling), name="breathing.yaml", base=EXAMPLES)


def day() -> RequestStream:
    """Quiet, a minute and a half of four times what one node bears, and quiet again."""
    rates = ((0.0, 40.0, 1.0), (40.0, 130.0, 12.0), (130.0, 330.0, 1.0))
    records = [
        TraceRecord(arrival_s=start_s + i / rate, input_tokens=1000, output_tokens=8, model="a")
        for start_s, end_s, rate in rates
        for i in range(int((end_s - start_s) * rate))
    ]
    return RequestStream(
        name="day", records=lambda: iter(records), block_tokens=None, count=len(records), span_s=records[-1].arrival_s
    )


def run(file: FleetFile) -> FleetOutcome:
    deployed = deploy_fleet(file, MUX, loads=LoadTimes())
    return run_fleet(deployed, day(), RunOptions(limits=GatewayLimits(hold_s=60.0), gateways=1))


def changes(outcome: FleetOutcome, kind: str = "scale") -> list[str]:
    return [d.reason.split(":")[1].strip() for d in reversed(outcome.decisions) if d.kind == kind]


@pytest.fixture(scope="module")
def breathed() -> FleetOutcome:
    return run(fleet())


def test_pool__demand_comes_and_goes__grows_and_shrinks_and_loses_nothing_that_it_took(breathed: FleetOutcome) -> None:
    total, use = breathed.total(), breathed.node_use

    assert (total.failed, total.finished + total.rejected) == (0, total.requests)
    assert total.finished > 0.85 * total.requests  # some are shed before the nodes are there
    assert use is not None
    assert use.most > 1
    assert changes(breathed)[-1].startswith("1 nodes")
    assert use.node_hours < 3 * breathed.ended_s / 3600


def test_pool__schedule__is_there_before_demand_is(breathed: FleetOutcome) -> None:
    scheduled = run(fleet('schedule: [{nodes: 3, start: "00:00", end: "00:04"}]'))

    assert scheduled.node_use is not None
    assert scheduled.node_use.most == 3
    assert scheduled.total().attained > breathed.total().attained


def test_pool__forecast_by_the_day_before__is_there_before_demand_is(breathed: FleetOutcome, tmp_path: Path) -> None:
    yesterday = tmp_path / "yesterday.jsonl"
    rows = ({"timestamp": 1000 * r.arrival_s, "input_length": 1000, "output_length": 8} for r in day().records())
    yesterday.write_text("".join(json.dumps(row) + "\n" for row in rows))

    foreseen = run(fleet(f"forecast: {{season_s: 400, trace: {yesterday}}}"))

    assert foreseen.node_use is not None
    assert foreseen.total().attained > breathed.total().attained
