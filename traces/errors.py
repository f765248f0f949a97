"""Errors of traces.

TraceError
├── TraceUnreadable   a file is missing, cannot be read, or is in no known format
├── BadTraceFile      a file is in a known format and holds a value that no request can have
└── BadParameter      an argument that a transform, a generator or the replay client cannot work with
"""

from pathlib import Path


class TraceError(Exception):
    """Base of this package's errors."""


class TraceUnreadable(TraceError):
    def __init__(self, *, path: Path, reason: str, remedy: str) -> None:
        super().__init__(f"{path}: {reason}; {remedy}")
        self.path = path
        self.reason = reason
        self.remedy = remedy


class BadTraceFile(TraceError):
    """`row` counts data rows (JSONL: lines) from 1; None means the file as a whole."""

    def __init__(self, *, path: Path, field: str, row: int | None, value: object, remedy: str) -> None:
        place = f"{path}, row {row}" if row is not None else str(path)
        shown = repr(value)
        if len(shown) > 80:
            shown = shown[:77] + "..."
        super().__init__(f"{place}: {field}={shown} is not usable: {remedy}")
        self.path = path
        self.field = field
        self.row = row
        self.value = value
        self.remedy = remedy


class BadParameter(TraceError):
    def __init__(self, *, name: str, value: object, remedy: str) -> None:
        super().__init__(f"{name}={value!r} is not usable: {remedy}")
        self.name = name
        self.value = value
        self.remedy = remedy
