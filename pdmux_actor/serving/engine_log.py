"""Formats log records as JSON lines: an engine process writes them to standard error, where its actor reads them."""

import faulthandler
import logging
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

_LOG = logging.getLogger(__name__)
_TELL_STACKS = signal.SIGUSR1
_OWN = frozenset({"time", "level", "logger", "message"})
# What torch writes once where it is told the SMs of a partition (executor/cuda/sm_target.py): nobody need act.
_EXPECTED_OF_TORCH = (
    "Setting the SM carveout for matmuls is a temporary experimental mitigation",
    "preferred_blas_library is an experimental feature",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLine:
    """`text` is for people who read an engine's last words."""

    level: int
    message: str
    text: str
    fields: dict[str, Any] = field(default_factory=dict)


def log_to_actor() -> None:
    """Sets up logging in an engine process, from INFO on."""
    faulthandler.register(_TELL_STACKS)
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines({}))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.captureWarnings(True)  # one record each, not a line of text and one of source


def ask_for_stacks(pid: int, reason: str) -> None:
    """Has an engine process that makes no progress write what each of its threads is at, also where none of them can
    run Python.
    """
    _LOG.warning("engine process makes no progress", extra={"engine_pid": pid, "reason": reason})
    with suppress(ProcessLookupError):
        os.kill(pid, _TELL_STACKS)


def read_line(line: bytes) -> EngineLine:
    """Reads a line of an engine process. What is none of its log (a traceback, a library) matters: a warning, but for
    what torch is known to write.
    """
    text = line.decode(errors="replace").rstrip()
    told = _decoded(text)
    if told is None:
        level = _level(logging.WARNING, text)
        return EngineLine(level=level, message="the engine process writes", text=text, fields={"line": text})
    fields = {name: value for name, value in told.items() if name not in _OWN} | {"engine_logger": told["logger"]}
    level = _level(logging.getLevelNamesMapping().get(told["level"], logging.WARNING), told["message"])
    words = f"{told['level']} {told['logger']}: {told['message']}"
    return EngineLine(level=level, message=told["message"], text="\n".join([words, *_exception(told)]), fields=fields)


def _level(level: int, said: str) -> int:
    return min(level, logging.INFO) if any(words in said for words in _EXPECTED_OF_TORCH) else level


def _decoded(text: str) -> dict[str, Any] | None:
    if not text.startswith('{"time":'):
        return None
    try:
        told = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        return None
    return told if all(isinstance(told.get(name), str) for name in _OWN) else None


def _exception(told: dict[str, Any]) -> list[str]:
    return [str(told["exception"])] if "exception" in told else []


_OF_EVERY_RECORD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """Each has time, level, logger, message, and every field that was given with `extra`. `fields` are the process's
    own, for example its unit. What a record names itself goes before them.
    """

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
