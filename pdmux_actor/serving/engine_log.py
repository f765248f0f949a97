"""Passes on what an engine process logs: it writes JSON lines to its standard error, its actor reads them there."""

import faulthandler
import logging
import os
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pdmux_actor.serving.json_lines import JsonLines

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
