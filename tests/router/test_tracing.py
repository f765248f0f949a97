"""Spans as an exporter gets them: of a gateway, and of an engine below them."""

import asyncio
from functools import partial

import httpx
import pytest
from fake_unit import FakeUnit, eventually, fleet_view
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from real_unit import MODEL as REAL
from real_unit import real_fleet

from pdmux_actor.models.random_checkpoint import DEMO_SHAPES, write_random_checkpoint
from pdmux_actor.scheduling.decision import Decision, DecisionKind
from pdmux_actor.serving.commands import EngineSettings
from pdmux_actor.serving.step_spans import StepSpans, runs_of
from router.http.app import create_app
from router.limits import GatewayLimits
from router.serving.gateway import Gateway
from router.telemetry.tracing import RequestSpans

MODEL = "demo/bytes"
TRACE = "0af7651916cd43dd8448eb211c80319c"


async def test_spans__request_with_a_parent__queue_prefill_decode_below_it(tokenizer_folder) -> None:
    exported = InMemorySpanExporter()
    gateway = Gateway()
    app = create_app(gateway, spans=RequestSpans(SimpleSpanProcessor(exported), version="test"))
    async with FakeUnit() as unit, httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://g") as http:
        gateway.update_view(fleet_view(unit, source=tokenizer_folder))
        body = {"model": MODEL, "prompt": "hi", "max_tokens": 3}
        headers = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
        assert (await http.post("/v1/completions", json=body, headers=headers)).status_code == 200
        assert (await http.post("/v1/completions", json={**body, "model": "none"})).status_code == 404
        await http.get("/health")
        await eventually(lambda: len(exported.get_finished_spans()) == 5)
    await gateway.close()

    *phases, served, refused = exported.get_finished_spans()
    assert [s.name for s in phases] == ["queue", "prefill", "decode"]
    assert format(served.context.trace_id, "032x") == TRACE
    assert all(s.parent.span_id == served.context.span_id for s in phases)
    assert served.start_time <= phases[0].start_time <= phases[1].start_time <= phases[2].start_time
    assert phases[2].end_time <= served.end_time
    assert served.attributes["gen_ai.usage.output_tokens"] == 3
    assert served.attributes["muxfleet.unit"] == "unit-a"
    assert refused.attributes["error.type"] == "ModelNotFound"
    assert refused.attributes["http.response.status_code"] == 404


async def test_spans__stream_that_ends_with_an_error__say_so_though_its_status_was_200(tokenizer_folder) -> None:
    exported = InMemorySpanExporter()
    gateway = Gateway(GatewayLimits(max_attempts=1))
    app = create_app(gateway, spans=RequestSpans(SimpleSpanProcessor(exported), version="test"))
    async with (
        FakeUnit(fuse=[5]) as unit,
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://g") as http,
    ):
        gateway.update_view(fleet_view(unit, source=tokenizer_folder))
        body = {"model": MODEL, "prompt": "hi", "max_tokens": 30, "stream": True}
        assert (await http.post("/v1/completions", json=body)).status_code == 200
    await gateway.close()

    (request,) = [s for s in exported.get_finished_spans() if s.name.startswith("POST")]
    assert request.attributes["error.type"] == "UnitsLost"
    assert request.status.status_code is StatusCode.ERROR


async def test_spans__of_an_engine__lie_below_the_request_and_count_its_steps(tmp_path) -> None:
    write_random_checkpoint(tmp_path / "model", DEMO_SHAPES["demo-llama"], 0)
    ours, engines = InMemorySpanExporter(), InMemorySpanExporter()
    spans = RequestSpans(SimpleSpanProcessor(ours), version="test")
    trace = partial(_steps_to, engines)
    settings = EngineSettings(kind="simulated", kv_pool_bytes=256 << 20, num_cores=2)
    async with (
        real_fleet(tmp_path / "model", settings, spans=spans, trace=trace) as url,
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http,
    ):
        body = {"model": REAL, "prompt": [*range(5, 45)], "max_tokens": 12, "ignore_eos": True}
        sampled = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
        other = {"traceparent": f"00-{TRACE[::-1]}-b7ad6b7169203331-00"}
        beside = body | {"max_tokens": 200}  # until long after the sampled one, on a slow machine too
        asked = [http.post("/v1/completions", json=beside, headers=other) for _ in range(12)]  # more than a log names
        answers = await asyncio.gather(*asked, http.post("/v1/completions", json=body, headers=sampled))
        assert {answer.status_code for answer in answers} == {200}
        await eventually(lambda: any(s.name == "engine decode" for s in engines.get_finished_spans()))

    (request,) = [s for s in ours.get_finished_spans() if s.name.startswith("POST")]
    steps = engines.get_finished_spans()
    assert all(s.parent.span_id == request.context.span_id for s in steps)
    assert {format(s.context.trace_id, "032x") for s in [request, *steps]} == {TRACE}
    prompts = [s for s in steps if s.name != "engine decode"]
    assert sum(s.attributes["muxfleet.prompt_tokens"] for s in prompts) >= 40
    assert sum(s.attributes["muxfleet.steps"] for s in steps) >= 11, "the first token is the prefill's"
    assert all(request.start_time <= s.start_time <= s.end_time <= request.end_time for s in steps)
    assert max(s.attributes["muxfleet.requests"] for s in steps) > 8
    assert all(s.resource.attributes["service.name"] == "muxfleet-unit" for s in steps)


def _steps_to(exporter: InMemorySpanExporter, read) -> StepSpans:
    return StepSpans(SimpleSpanProcessor(exporter), unit_id="u", version="test", read=read)


def decision(index: int, kind: DecisionKind, decode_sms: int = 8) -> Decision:
    return Decision(index=index, now_s=float(index), kind=kind, prefill_sms=0, decode_sms=decode_sms)


@pytest.mark.parametrize(
    ("made", "lengths"),
    [
        ([(DecisionKind.PREFILL, 8), (DecisionKind.PREFILL, 8)], [1, 1]),
        ([(DecisionKind.DECODE, 8), (DecisionKind.DECODE, 8), (DecisionKind.DECODE, 4)], [2, 1]),
        ([(DecisionKind.DECODE, 8), (DecisionKind.MIXED, 8), (DecisionKind.DECODE, 8)], [1, 1, 1]),
    ],
)
def test_runs__of_decode_steps__end_with_another_launch_or_partition(made, lengths) -> None:
    runs = runs_of([decision(i, kind, sms) for i, (kind, sms) in enumerate(made)])

    assert [len(run) for run in runs] == lengths
