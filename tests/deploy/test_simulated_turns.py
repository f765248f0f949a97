"""Models that take turns on a unit with room for one of them, in virtual time: long answers come in pieces."""

from pathlib import Path

from deploy.fleet_file.settings import parse_fleet_file
from deploy.simulation.control import LoadTimes
from deploy.simulation.deployments import Deployment, deploy_fleet
from deploy.simulation.runs import RunOptions, run_fleet
from deploy.simulation.streams import RequestStream
from router.limits import GatewayLimits
from traces.outcome import Ending, RequestOutcome
from traces.record import TraceRecord

EXAMPLES = Path(__file__).parents[2] / "examples"
TOKENS, HOLD_S = 2000, 30.0
MODEL = """
  - id: {}
    source: ./models/llama-3.1-8b
    max_model_len: 8192
    demand: {{rate_per_s: 0.1, prompt_tokens: 200, output_tokens: 2000}}
    replicas: {{min: 0, max: 1, idle_after_s: 3600}}
"""
FLEET = """
name: turns
pools:
  - {{name: p, device: simulated, gpu_type: A40, gpus_per_node: 1, kv_memory: 8GiB, device_memory: 30GiB}}
gateway: {{hold_s: {hold_s}}}
models:{models}
"""


def outcomes_of(models: str, loads: LoadTimes) -> list[RequestOutcome]:
    """One long answer of each model is asked for, every 5 s one."""
    text = FLEET.format(hold_s=HOLD_S, models="".join(MODEL.format(name) for name in models))
    records = [
        TraceRecord(arrival_s=5.0 * place, input_tokens=200, output_tokens=TOKENS, model=model)
        for place, model in enumerate(models)
    ]
    stream = RequestStream(
        name="t", records=lambda: iter(records), block_tokens=None, count=len(records), span_s=records[-1].arrival_s
    )
    fleet = parse_fleet_file(text, name="turns.yaml", base=EXAMPLES)
    deployed = deploy_fleet(fleet, Deployment(name="mux", policy="mux"), loads=loads)
    outcomes: list[RequestOutcome] = []
    options = RunOptions(limits=GatewayLimits(hold_s=HOLD_S), gateways=2)
    run_fleet(deployed, stream, options, on_outcome=outcomes.append)
    return outcomes


def test_turns__answers_outlast_them__go_on_where_they_were_and_end_with_all_their_tokens() -> None:
    outcomes = outcomes_of("abc", loads=LoadTimes(bytes_per_s=16e9))

    assert [(o.ending, o.output_tokens) for o in outcomes] == [(Ending.FINISHED, TOKENS)] * 3
    assert max(max(o.gaps_s) for o in outcomes) > 10.0, "others had their turns meanwhile"


def test_turns__loads_leave_no_time_for_all__no_answer_that_has_begun_is_lost() -> None:
    outcomes = outcomes_of("abcdef", loads=LoadTimes(bytes_per_s=4e9))

    assert {o.ending for o in outcomes} == {Ending.FINISHED, Ending.REJECTED}
    assert max(max(o.gaps_s, default=0.0) for o in outcomes) > HOLD_S
