"""Whatever comes to a fleet of whatever mode: each request ends once, with its tokens, and leaves no block behind."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.fleet_file.settings import parse_fleet_file
from deploy.simulation.control import LoadTimes
from deploy.simulation.deployments import DeployedFleet, Deployment, deploy_fleet
from deploy.simulation.fleet_modes.split import Split
from deploy.simulation.fleet_run import FleetRun
from deploy.simulation.streams import RequestStream
from pdmux_actor.scheduling.policies.registry import POLICIES
from router.limits import GatewayLimits
from traces.outcome import Ending, RequestOutcome
from traces.record import TraceRecord

FLEET = """
name: any
models:
  - {id: a, source: ./models/qwen2.5-1.5b, max_model_len: 2048, slo: {ttft_s: 0.2, tbt_s: 0.02},
     demand: {rate_per_s: 2.0, prompt_tokens: 300, output_tokens: 20}}
  - {id: b, source: ./models/qwen2.5-1.5b, max_model_len: 2048, slo: {ttft_s: 1.0, tbt_s: 0.05},
     demand: {rate_per_s: 1.0, prompt_tokens: 900, output_tokens: 40}}
pools:
  - {name: p, device: simulated, gpu_type: A40, gpus_per_node: 2, mesh_gpus: 2, kv_memory: 256MiB}
placement: {replan_every_s: 10, min_residency_s: 5, max_moves_per_min: 30}
"""
LED = "led by a control loop"
LINK = Split(link_bytes_per_s=1e9)
MODES = {
    "disaggregated": Deployment(name="d", policy="prefill_first", fleet_mode="disaggregated", split=LINK),
    "disaggregated, layerwise": Deployment(
        name="l", policy="mux", fleet_mode="disaggregated", split=replace(LINK, layerwise=True)
    ),
    "windserve": Deployment(name="w", policy="prefill_first", fleet_mode="windserve", split=LINK),
    "loongserve": Deployment(name="e", policy="prefill_first", fleet_mode="loongserve", split=LINK),
    LED: Deployment(name="c", policy="mux"),
    **{policy: Deployment(name=policy, policy=policy) for policy in POLICIES},
}
GAPS_S = st.sampled_from((0.0, 0.0, 0.001, 0.03, 0.25, 0.5, 1.3, 40.0))
REQUESTS = st.lists(
    st.tuples(
        GAPS_S,
        st.sampled_from((1, 2, 63, 64, 65, 512, 700, 1500, 5000)),
        st.sampled_from((0, 1, 2, 3, 17, 60, 9000)),
        st.sampled_from("ab"),
        st.lists(st.integers(0, 2), max_size=4).map(tuple),
    ),
    min_size=1,
    max_size=14,
)


@cache
def deployed(mode: str) -> DeployedFleet:
    fleet = parse_fleet_file(FLEET, name="any.yaml", base=Path(__file__).parents[2] / "examples")
    return deploy_fleet(fleet, MODES[mode], loads=LoadTimes() if mode == LED else None)


def stream(requests: list[tuple[float, int, int, str, tuple[int, ...]]]) -> RequestStream:
    records, time_s = list[TraceRecord](), 0.0
    for gap_s, prompt, output, model, blocks in requests:
        time_s += gap_s
        records.append(
            TraceRecord(
                arrival_s=time_s,
                input_tokens=prompt,
                output_tokens=output,
                model=model,
                prefix_block_hashes=blocks,
            )
        )
    return RequestStream(name="any", records=lambda: iter(records), block_tokens=256, count=len(records), span_s=time_s)


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=6, deadline=None)
@given(requests=REQUESTS)
def test_fleet_run__anything_comes__each_request_ends_once_and_no_block_is_left(
    mode: str, requests: list[tuple[float, int, int, str, tuple[int, ...]]]
) -> None:
    ended: list[RequestOutcome] = []
    fleet = deployed(mode)
    run = FleetRun(
        models=fleet.models,
        build_units=fleet.build,
        stream=stream(requests),
        limits=GatewayLimits(),
        gateways=2,
        view_updates=fleet.view_updates,
        on_outcome=ended.append,
    )
    outcome = run.run()
    total = outcome.total()

    assert sorted(o.index for o in ended) == list(range(len(requests)))
    assert [o.end_s for o in ended] == sorted(o.end_s for o in ended)
    assert (total.requests, total.failed, total.finished + total.rejected) == (len(requests), 0, len(requests))
    for o in ended:
        if o.ending is Ending.FINISHED:
            assert o.output_tokens == o.requested_tokens
            assert o.ttft_s is not None
            assert o.ttft_s > 0
            assert all(gap_s >= 0 for gap_s in o.gaps_s)
            assert o.end_s == pytest.approx(o.scheduled_s + o.ttft_s + sum(o.gaps_s))
    for unit in run._units:
        load = unit.load_report()
        assert load.free_blocks + load.cached_blocks == load.total_blocks
        assert all(m.running == m.waiting == m.used_blocks == 0 for m in load.models)
