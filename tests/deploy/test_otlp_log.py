"""Log records as an OpenTelemetry collector gets them: over a real socket, in OTLP's protobuf."""

import gzip
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from deploy.control.flight_recorder import FlightRecorder
from deploy.log_lines import otlp_records
from router.telemetry.fleet_event import EventKind
from router.telemetry.tracing import otlp_spans


class Collector:
    def __init__(self, url: str) -> None:
        self.url = url
        self.bodies: list[tuple[str, bytes]] = []

    def records(self) -> list[LogRecord]:
        requests = [ExportLogsServiceRequest.FromString(body) for path, body in self.bodies if path == "/v1/logs"]
        return [r for q in requests for e in q.resource_logs for s in e.scope_logs for r in s.log_records]


@pytest.fixture
def collector() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            told.bodies.append((self.path, gzip.decompress(body) if "gzip" in self.headers.values() else body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Writes nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    told = Collector(f"http://127.0.0.1:{server.server_address[1]}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield told
    server.shutdown()
    server.server_close()


def attributes(record: LogRecord) -> dict[str, object]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in record.attributes}


def test_records__of_the_flight_recorder__have_event_name_time_and_fields(collector: Collector) -> None:
    handler = otlp_records(collector.url, service="muxfleet-controller", fields={"replica": "r1"})
    assert handler is not None
    logger = logging.getLogger("deploy.control.flight_recorder")
    logger.addHandler(handler)
    try:
        FlightRecorder(lambda: 1000.0).record(5.0, EventKind.UNIT_LOST, "it died", unit="u")
    finally:
        logger.removeHandler(handler)
        handler.close()

    (record,) = collector.records()
    assert (record.event_name, record.body.string_value, record.severity_text) == (
        "muxfleet.unit_lost",
        "fleet event",
        "WARNING",
    )
    assert record.time_unix_nano == 1005 * 10**9
    told = attributes(record)
    assert {k: told[k] for k in ("kind", "unit", "reason", "replica")} == {
        "kind": "unit_lost",
        "unit": "u",
        "reason": "it died",
        "replica": "r1",
    }


def test_records__of_an_exception__have_its_trace_and_odd_fields_as_text(collector: Collector) -> None:
    handler = otlp_records(collector.url, service="muxfleet-unit", fields={})
    assert handler is not None
    logger = logging.Logger("pdmux_actor.x")
    logger.addHandler(handler)
    try:
        raise ValueError("no")
    except ValueError:
        logger.exception("loading a model failed", extra={"model": "m", "kept": (1, 2)})
    handler.close()

    told = attributes(collector.records()[0])
    assert (told["exception.type"], told["model"], told["kept"]) == ("ValueError", "m", "(1, 2)")
    assert "ValueError: no" in str(told["exception.stacktrace"])


def test_spans__over_otlp__reach_the_collector(collector: Collector) -> None:
    spans = otlp_spans(collector.url, version="test")
    assert spans is not None
    trace = spans.start(headers={}, endpoint="/v1/completions")
    spans.end(trace, {"request_id": "r", "model": "m"}, status=200)
    spans.close()

    ((path, body),) = collector.bodies
    (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    assert path == "/v1/traces"
    assert [s.name for s in resource.scope_spans[0].spans] == ["POST /v1/completions"]
