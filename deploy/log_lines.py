"""Sends what the product logs to where its replicas' output is collected, as JSON lines."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TextIO

from ray import serve

from deploy.environment import otlp_endpoint
from pdmux_actor.serving.engine_log import JsonLines, fields_of
from pdmux_actor.serving.otlp import log_processor

if TYPE_CHECKING:  # a process that exports nothing imports nothing of OpenTelemetry
    from opentelemetry.sdk._logs import LogRecordProcessor

_NS = 1_000_000_000
_SEVERITIES = ((logging.CRITICAL, 21), (logging.ERROR, 17), (logging.WARNING, 13), (logging.INFO, 9))
_DEBUG = 5
_PLAIN = str | bool | int | float


class OtlpRecords(logging.Handler):
    """An event of the flight recorder has the event name `muxfleet.KIND` and the time when it happened."""

    def __init__(self, processor: LogRecordProcessor, *, service: str, fields: Mapping[str, str]) -> None:
        """`fields` are the process's own."""
        from opentelemetry.sdk._logs import LoggerProvider
        from opentelemetry.sdk.resources import Resource

        super().__init__()
        self._provider = LoggerProvider(resource=Resource.create({"service.name": service}))
        self._provider.add_log_record_processor(processor)
        self._logger = self._provider.get_logger("muxfleet")
        self._fields = fields

    def emit(self, record: logging.LogRecord) -> None:
        from opentelemetry._logs import LogRecord, SeverityNumber

        told = {**self._fields, **fields_of(record), "logger": record.name}
        if record.exc_info and record.exc_info[0] is not None:
            told["exception.type"] = record.exc_info[0].__name__
            told["exception.stacktrace"] = logging.Formatter().formatException(record.exc_info)
        self._logger.emit(
            LogRecord(
                timestamp=int(float(told.get("at_s", record.created)) * _NS),
                observed_timestamp=int(record.created * _NS),
                severity_text=record.levelname,
                severity_number=SeverityNumber(_severity(record.levelno)),
                body=record.getMessage(),
                attributes={name: _plain(value) for name, value in told.items()},
                event_name=f"muxfleet.{told['kind']}" if "kind" in told else None,
            )
        )

    def close(self) -> None:
        self._provider.shutdown()
        super().close()


def otlp_records(endpoint: str, *, service: str, fields: Mapping[str, str]) -> OtlpRecords | None:
    """None when the optional package is not installed."""
    processor = log_processor(endpoint)
    return None if processor is None else OtlpRecords(processor, service=service, fields=fields)


def _severity(level: int) -> int:
    return next((number for least, number in _SEVERITIES if level >= least), _DEBUG)


def _plain(value: Any) -> str | bool | int | float:  # noqa: ANN401 - what `extra` takes
    return value if isinstance(value, _PLAIN) else repr(value)


_PRODUCT = ("deploy", "pdmux_actor", "placement", "profiler", "router", "traces")


def write_log_lines(stream: TextIO, fields: Mapping[str, str]) -> logging.Handler:
    """Sends what muxfleet's packages log, from INFO on, to `stream`, and to no handler of others."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines(fields))
    _listen(handler)
    return handler


def _listen(handler: logging.Handler) -> None:
    for name in _PRODUCT:
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False


def log_from_replica(**fields: str) -> None:
    """Sets up logging in a replica's constructor: Ray keeps the standard output of each in a file (`worker-*.out`) of
    its session. Serve puts an object of its own in the place of `sys.stdout`, which would make text of the lines. Where
    the environment names a collector, the records go there, too.
    """
    context = serve.get_replica_context()
    told = {"deployment": context.deployment, "replica": context.replica_id.unique_id, **fields}
    write_log_lines(sys.__stdout__ or sys.stdout, told)
    if (endpoint := otlp_endpoint()) is not None:
        records = otlp_records(endpoint, service=f"muxfleet-{context.deployment.lower()}", fields=told)
        if records is not None:
            _listen(records)
