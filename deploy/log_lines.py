"""The product's log as JSON lines: time, level, logger, message, and every field that was given with `extra`."""

import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec
from ray import serve

_PRODUCT = ("deploy", "pdmux_actor", "placement", "profiler", "router", "traces")
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
            **{name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD},
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=repr).decode()


def write_log_lines(stream: TextIO, fields: Mapping[str, str]) -> logging.Handler:
    """Sends what muxfleet's packages log, from INFO on, to `stream` and nowhere else."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines(fields))
    for name in _PRODUCT:
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
    return handler


def log_from_replica(**fields: str) -> None:
    """Sets up logging in a replica's constructor: Ray keeps the standard output of each in a file (`worker-*.out`) of
    its session. Serve puts an object of its own in the place of `sys.stdout`, which would make text of the lines.
    """
    context = serve.get_replica_context()
    replica = context.replica_id.unique_id
    write_log_lines(sys.__stdout__ or sys.stdout, {"deployment": context.deployment, "replica": replica, **fields})
