"""Metrics in OpenMetrics' format, which a scraper asks for by its header: latencies name traces as exemplars."""

import httpx
import pytest
from fake_unit import FakeUnit, fleet_view
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from served_gateway import InlineText

from router.http.app import create_app
from router.serving.gateway import Gateway
from router.telemetry.fleet_metrics import merged_exposition
from router.telemetry.tracing import RequestSpans

MODEL = "demo/bytes"
TRACE = "0af7651916cd43dd8448eb211c80319c"
SCRAPER = {"accept": "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2"}
LATENCIES = {
    "muxfleet_time_to_first_token_seconds",
    "muxfleet_inter_token_latency_seconds",
    "muxfleet_request_duration_seconds",
    "muxfleet_queue_time_seconds",
}


def exemplars(text: str) -> dict[str, set[str]]:
    """Trace ids, by histogram."""
    families = text_string_to_metric_families(text)
    return {
        family.name: {s.exemplar.labels["trace_id"] for s in family.samples if s.exemplar is not None}
        for family in families
        if family.type == "histogram"
    }


@pytest.mark.parametrize("flag", ["01", "00"])
async def test_metrics__of_two_gateways_after_a_traced_request__name_its_trace(tokenizer_folder, flag: str) -> None:
    gateway, other = Gateway(start_text=InlineText.start), Gateway(start_text=InlineText.start)

    async def of_both(openmetrics: bool) -> bytes:
        own = {name: g.metrics.own_text(openmetrics=openmetrics) for name, g in by_name.items()}
        return merged_exposition(own, gateway.metrics.fleet_text(openmetrics=openmetrics))

    by_name = {"g1": gateway, "g2": other}
    spans = RequestSpans(SimpleSpanProcessor(InMemorySpanExporter()), version="test")
    app = create_app(gateway, spans=spans, read_metrics=of_both)
    async with FakeUnit() as unit, httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://g") as http:
        view = fleet_view(unit, source=tokenizer_folder)
        gateway.update_view(view)
        other.update_view(view)
        body = {"model": MODEL, "prompt": "hi", "max_tokens": 3, "stream": True}
        headers = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-{flag}"}
        assert (await http.post("/v1/completions", json=body, headers=headers)).status_code == 200
        scraped = await http.get("/metrics", headers=SCRAPER)
        plain = await http.get("/metrics")
    await gateway.close()
    await other.close()

    assert scraped.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert plain.headers["content-type"].startswith("text/plain")
    assert "trace_id" not in plain.text
    found = exemplars(scraped.text)
    assert found.keys() >= LATENCIES
    assert {name for name, traces in found.items() if traces == {TRACE}} == (LATENCIES if flag == "01" else set())
    of = {sample.labels.get("gateway") for f in text_string_to_metric_families(scraped.text) for sample in f.samples}
    assert of == {"g1", "g2", None}  # what both know alike stands once
