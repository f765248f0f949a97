"""OpenTelemetry spans of requests, from a gateway's point of view. Units write those of their engines below them."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opentelemetry.context import Context
from opentelemetry.propagate import extract
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context

from pdmux_actor.serving.otlp import span_processor
from router.error_bodies import shape_of
from router.errors import RouterError
from router.telemetry.service_report import ServiceReport

_NS = 1_000_000_000


class RequestSpans:
    """One span per request that is sampled, a child of the client's `traceparent`, with children for queue, prefill and
    decode. Which are sampled, the client's flag says, or OTEL_TRACES_SAMPLER as OpenTelemetry has it: else all.
    """

    def __init__(self, processor: SpanProcessor, *, version: str) -> None:
        self._provider = TracerProvider(resource=Resource.create({"service.name": "muxfleet-gateway"}))
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("muxfleet", version)

    def start(self, *, headers: Mapping[str, str], endpoint: str) -> "RequestTrace":
        """The request begins now."""
        start_ns = time.time_ns()
        span = self._tracer.start_span(
            f"POST {endpoint}", context=extract(headers), kind=SpanKind.SERVER, start_time=start_ns
        )
        return RequestTrace(span=span, start_ns=start_ns)

    def end(self, trace: "RequestTrace", state: Mapping[str, Any], *, status: int) -> None:
        """`state` is the request's, as in the request log. The request ends now."""
        span, start_ns = trace.span, trace.start_ns
        if not span.is_recording():
            return
        end_ns = max(start_ns, time.time_ns())
        span.set_attribute("http.response.status_code", status)
        span.set_attribute("gen_ai.request.model", state.get("model", ""))
        span.set_attribute("muxfleet.request_id", state["request_id"])
        error: RouterError | None = state.get("error")
        if error is not None:
            span.set_attribute("error.type", type(error).__name__)
        if status >= 500 or (error is not None and shape_of(error).status >= 500):  # a stream may end in one
            span.set_status(Status(StatusCode.ERROR))
        report: ServiceReport | None = state.get("report")
        if report is not None and report.unit_id:
            self._describe(span, report)
            self._phases(set_span_in_context(span), report, start_ns=start_ns, end_ns=end_ns)
        span.end(end_time=end_ns)

    def close(self) -> None:
        self._provider.shutdown()

    def _describe(self, span: Span, report: ServiceReport) -> None:
        span.set_attribute("gen_ai.usage.input_tokens", report.prompt_tokens)
        span.set_attribute("gen_ai.usage.output_tokens", report.output_tokens)
        span.set_attribute("muxfleet.unit", report.unit_id)
        span.set_attribute("muxfleet.prefix_tokens", report.prefix_tokens)
        span.set_attribute("muxfleet.cold_seconds", report.cold_s)
        span.set_attribute("muxfleet.ttft_met", report.ttft_met)
        span.set_attribute("muxfleet.tbt_met", report.tbt_met)
        span.set_attribute("muxfleet.in_time", report.in_time)
        if report.predicted_ttft_s is not None:
            span.set_attribute("muxfleet.predicted_ttft_seconds", report.predicted_ttft_s)

    def _phases(self, parent: Context, report: ServiceReport, *, start_ns: int, end_ns: int) -> None:
        admitted_ns = min(end_ns, start_ns + int(report.queue_s * _NS))
        self._phase("queue", parent, start_ns, admitted_ns)
        if report.ttft_s is None:
            return
        first_ns = min(end_ns, admitted_ns + int(report.prefill_s * _NS))
        self._phase("prefill", parent, admitted_ns, first_ns)
        self._phase("decode", parent, first_ns, end_ns)

    def _phase(self, name: str, parent: Context, start_ns: int, end_ns: int) -> None:
        self._tracer.start_span(name, context=parent, start_time=start_ns).end(end_time=end_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTrace:
    span: Span
    start_ns: int

    @property
    def traceparent(self) -> str:
        """Tells others below which span theirs are (W3C Trace Context); empty for one that is not sampled."""
        context = self.span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-01" if context.trace_flags.sampled else ""


def otlp_spans(endpoint: str, *, version: str) -> RequestSpans | None:
    """Sends to an OTLP/HTTP collector; None, with a word in the log, when the optional package is not there."""
    processor = span_processor(endpoint)
    return None if processor is None else RequestSpans(processor, version=version)
