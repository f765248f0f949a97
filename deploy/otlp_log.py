"""Sends log records to an OpenTelemetry collector, with the fields that the JSON lines have as attributes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pdmux_actor.serving.engine_log import fields_of
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
