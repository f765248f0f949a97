"""Trace readers by name: every file of this folder that declares a READER; and the way into every trace file."""

import itertools
import stat
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from traces.errors import BadParameter, TraceUnreadable
from traces.readers.entry import TraceReader, head_text
from traces.record import TraceRecord
from traces.register import Register
from traces.trace import Trace
from traces.transforms import spread_ticks

Jitter = Literal["none", "tick"]
_HEAD_BYTES = 4096
_NOT_TWICE: Mapping[int, str] = {stat.S_IFIFO: "is a pipe", stat.S_IFCHR: "is a device", stat.S_IFSOCK: "is a socket"}

READERS = Register("traces.readers", "READER", TraceReader)
FILES = ", ".join(reader.files for reader in READERS.values())


def recognise(path: Path) -> TraceReader:
    """Looks at the content; the name does not matter.

    Raises:
        TraceUnreadable: there is no such file, or its content is none of the formats.
    """
    remedy = f"give a file of one of these formats, not compressed as a whole: {FILES}"
    try:
        if (kind := _NOT_TWICE.get(stat.S_IFMT(path.stat().st_mode))) is not None:
            reason = f"{kind}, and a trace is read more than once"
            raise TraceUnreadable(path=path, reason=reason, remedy="write it into a file, and give that")
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise TraceUnreadable(path=path, reason=error.strerror or str(error), remedy=remedy) from error
    for reader in READERS.values():
        if reader.recognises(head):
            return reader
    text = head_text(head)
    reason = "the file is empty" if not text else f"unknown format (begins with {text[:20]!r})"
    raise TraceUnreadable(path=path, reason=reason, remedy=remedy)


def iter_trace(path: Path | str) -> Iterator[TraceRecord]:
    """Streams a file too large to hold. Records come in the order and with the times of the file.

    Raises:
        TraceUnreadable, BadTraceFile: as `read_trace`; a bad row raises when it is reached.
    """
    path = Path(path)
    reader = recognise(path)
    return reader.iter_records(path, reader.read_facts(path))


def read_trace(path: Path | str, *, limit: int | None = None, jitter: Jitter = "none", seed: int = 0) -> Trace:
    """Reads a file, or its first `limit` rows, into records sorted by arrival that start at 0 s.

    `jitter="tick"` spreads requests whose times were rounded to ticks (Mooncake: 3 s) inside their tick.

    Raises:
        TraceUnreadable: there is no such file, it is broken, or in no known format.
        BadTraceFile: a value in it is not usable; the message names field, row, value and remedy.
        BadParameter: `limit` is below 1, or `jitter` is asked for a file without arrival times.
    """
    path = Path(path)
    if limit is not None and limit < 1:
        raise BadParameter(name="limit", value=limit, remedy="give at least 1")
    trace = _whole(path, limit)
    if not trace.records:
        raise TraceUnreadable(path=path, reason="the file holds no request", remedy="give a trace with rows")
    if jitter == "tick":
        return spread_ticks(trace, seed=seed)
    return trace


def _whole(path: Path, limit: int | None) -> Trace:
    reader = recognise(path)
    facts = reader.read_facts(path)
    return Trace(
        name=facts.metadata.get("name", path.stem),
        records=_in_order(itertools.islice(reader.iter_records(path, facts), limit)),
        block_tokens=facts.block_tokens,
        has_arrivals=facts.has_arrivals,
        metadata=facts.metadata,
    )


def _in_order(rows: Iterator[TraceRecord]) -> tuple[TraceRecord, ...]:
    records = sorted(rows, key=lambda record: record.arrival_s)
    if not records or records[0].arrival_s == 0.0:
        return tuple(records)
    start_s = records[0].arrival_s
    return tuple(replace(record, arrival_s=record.arrival_s - start_s) for record in records)
