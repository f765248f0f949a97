"""Exports spans and log records to an OpenTelemetry collector by OTLP over HTTP, if the optional package is there."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a process that exports nothing imports nothing of OpenTelemetry
    from opentelemetry.sdk._logs import LogRecordProcessor
    from opentelemetry.sdk.trace import SpanProcessor

logger = logging.getLogger(__name__)


def span_processor(endpoint: str) -> SpanProcessor | None:
    """None, with a word in the log, when the package is not installed."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        logger.error("no traces: OTEL_EXPORTER_OTLP_ENDPOINT is set, but `pip install 'muxfleet[otel]'` was not done")
        return None
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    return BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces"))


def log_processor(endpoint: str) -> LogRecordProcessor | None:
    """None when the package is not installed, which `span_processor` has said."""
    try:
        from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    except ImportError:
        return None
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor

    return BatchLogRecordProcessor(OTLPLogExporter(endpoint=f"{endpoint.rstrip('/')}/v1/logs"))
