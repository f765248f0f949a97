"""Passes on what an engine process logs: it writes JSON lines to its standard error, its actor reads them there."""

import logging
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pdmux_actor.serving.json_lines import JsonLines

_OWN = frozenset({"time", "level", "logger", "message"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLine:
    """`text` is for people who read an engine's last words."""

    level: int
    message: str
    text: str
    fields: dict[str, Any] = field(default_factory=dict)


def log_to_actor() -> None:
    """Sets up logging in an engine process, from INFO on."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines({}))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def read_line(line: bytes) -> EngineLine:
    """Reads a line of an engine process. What is none of its log (a traceback, a library) matters: a warning."""
    text = line.decode(errors="replace").rstrip()
    told = _decoded(text)
    if told is None:
        return EngineLine(level=logging.WARNING, message="the engine process writes", text=text, fields={"line": text})
    fields = {name: value for name, value in told.items() if name not in _OWN} | {"engine_logger": told["logger"]}
    level = logging.getLevelNamesMapping().get(told["level"], logging.WARNING)
    words = f"{told['level']} {told['logger']}: {told['message']}"
    return EngineLine(level=level, message=told["message"], text="\n".join([words, *_exception(told)]), fields=fields)


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
