"""Defines what a reader of trace files says of itself."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from traces.record import TraceRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFacts:
    """Holds for all rows of a file. `block_tokens`: of the blocks whose hashes rows may hold."""

    metadata: Mapping[str, str] = field(default_factory=dict)
    block_tokens: int | None = None
    has_arrivals: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceReader:
    """`files` and `rows` are its line of docs/simulation.md. `recognises` is shown the first bytes of a file.
    `iter_records` yields a record per row, in the order of the file and with its times; it raises BadTraceFile when it
    reaches a value that no request can have.
    """

    name: str
    files: str
    rows: str
    recognises: Callable[[bytes], bool]
    read_facts: Callable[[Path], TraceFacts]
    iter_records: Callable[[Path, TraceFacts], Iterator[TraceRecord]]


def head_text(head: bytes) -> str:
    return head.decode("utf-8-sig", errors="replace").lstrip()
