"""Spans as an exporter gets them."""

import httpx
from fake_unit import FakeUnit, eventually, fleet_view
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from router.http.app import create_app
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
