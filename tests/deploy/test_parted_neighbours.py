"""Two models that hurt each other more than any latency model says are parted, in a simulated fleet under load."""

from pathlib import Path

from deploy.fleet_file.settings import FleetFile, parse_fleet_file
from deploy.planning.fleet_planning import plan_fleet
from deploy.simulation.control import LoadTimes
from deploy.simulation.deployments import Deployment, deploy_fleet
from deploy.simulation.runs import RunOptions, run_fleet
from deploy.simulation.streams import RequestStream
from router.limits import GatewayLimits
from traces.outcome import RequestOutcome
from traces.record import TraceRecord
from traces.report import summarize
from traces.timeliness import SloTarget

EXAMPLES = Path(__file__).parents[2] / "examples"
SLO = SloTarget(ttft_s=2.0, tbt_s=0.2)
MODEL = """
  - id: {model}
    source: ./models/llama-3.1-8b
    max_model_len: 8192
    slo: {{ttft_s: 2.0, tbt_s: 0.2}}
    demand: {{rate_per_s: 1.0, prompt_tokens: 700, output_tokens: 20}}
    replicas: {{min: 1, max: 1}}"""
FLEET = """
name: pairs
models:{models}
pools:
  - {{name: p, device: simulated, gpu_type: A40, gpus_per_node: 2, kv_memory: 8GiB}}
placement: {{replan_every_s: 10, min_residency_s: 20, max_moves_per_min: 30}}
"""
SPAN_S = 80.0
MOVED_S = 50.0


def fleet() -> FleetFile:
    models = "".join(MODEL.format(model=m) for m in "abcd")
    return parse_fleet_file(FLEET.format(models=models), name="pairs.yaml", base=EXAMPLES)


def stream() -> RequestStream:
    records = [
        TraceRecord(arrival_s=i + 0.21 * place, input_tokens=500 + 400 * (i % 2), output_tokens=20, model=model)
        for i in range(round(SPAN_S))
        for place, model in enumerate("abcd")
    ]
    return RequestStream(
        name="t", records=lambda: iter(records), block_tokens=None, count=len(records), span_s=records[-1].arrival_s
    )


def in_time(outcomes: list[RequestOutcome], model: str, *, since_s: float, until_s: float) -> float:
    inside = [o for o in outcomes if since_s <= o.scheduled_s < until_s and o.model == model]
    return summarize(inside, {model: SLO}).total.request_attainment or 0.0


def test_control_loop__pair_hurts_each_other__is_parted_and_in_time() -> None:
    one, other = (p.model for p in plan_fleet(fleet()).plan.units[0].models)
    hurts = Deployment(name="mux", policy="mux", interference={(one, other): 4.0, (other, one): 4.0})
    outcomes: list[RequestOutcome] = []

    found = run_fleet(
        deploy_fleet(fleet(), hurts, loads=LoadTimes(bytes_per_s=1e12)),
        stream(),
        RunOptions(limits=GatewayLimits(hold_s=60.0), gateways=1),
        on_outcome=outcomes.append,
    )

    moves = [move for decision in found.decisions for move in decision.moves]
    assert len([m for m in moves if m.startswith(("load ", "wake "))]) == 2
    assert any(m.startswith((f"drain {one} ", f"drain {other} ")) for m in moves)
    for model in (one, other):
        before = in_time(outcomes, model, since_s=0.0, until_s=20.0)
        after = in_time(outcomes, model, since_s=MOVED_S, until_s=SPAN_S)
        assert before < 0.8
        assert after > 0.9
