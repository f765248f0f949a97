"""Formats log records as JSON lines: time, level, logger, message, and every field that was given with `extra`."""

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

_OF_EVERY_RECORD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """`fields` are the process's own, for example its unit. What a record names itself goes before them."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        super().__init__()
        self._fields = fields

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **self._fields,
            **fields_of(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=repr).decode()


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Returns what was given with `extra`; not what a library's record factory adds under private names, as Ray's."""
    return {k: value for k, value in vars(record).items() if k not in _OF_EVERY_RECORD and not k.startswith("_")}
