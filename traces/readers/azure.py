"""Reads Azure's LLM inference traces (CSV): TIMESTAMP, ContextTokens, GeneratedTokens."""

import csv
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from traces.errors import BadTraceFile
from traces.readers.entry import TraceFacts, TraceReader, head_text
from traces.readers.fields import Cell
from traces.record import TraceRecord

REQUIRED_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_TIME_REMEDY = "give the time as YYYY-MM-DD HH:MM:SS.fffffff"


def iter_records(path: Path, facts: TraceFacts) -> Iterator[TraceRecord]:
    """Yields one record per row, in the order of the file; times count from the first row.

    Raises:
        BadTraceFile: a column is missing, or a row holds a value that no request can have.
    """
    first: tuple[int, float] | None = None
    row = 0
    with path.open(encoding="utf-8-sig", newline="") as lines:
        try:
            reader = csv.DictReader(lines, skipinitialspace=True)
            _check_columns(path, reader.fieldnames or ())
            for row, values in enumerate(reader, start=1):
                if None in values:  # more cells than columns: a thousands separator would pass for a column's end
                    raise Cell(path, row, "line", ",".join(map(str, values.values()))).bad("give one cell per column")
                time = _time(Cell(path, row, "TIMESTAMP", values["TIMESTAMP"]))
                first = first or time
                yield TraceRecord(
                    arrival_s=(time[0] - first[0]) + (time[1] - first[1]),
                    input_tokens=Cell(path, row, "ContextTokens", values["ContextTokens"]).tokens(minimum=1),
                    output_tokens=Cell(path, row, "GeneratedTokens", values["GeneratedTokens"]).tokens(minimum=0),
                )
        except (csv.Error, UnicodeDecodeError) as error:
            raise BadTraceFile(
                path=path, field="line", row=row + 1, value=str(error), remedy="make the file a CSV file in UTF-8"
            ) from error


def _check_columns(path: Path, names: Sequence[str]) -> None:
    for column in REQUIRED_COLUMNS:
        if (count := names.count(column)) != 1:
            raise BadTraceFile(
                path=path,
                field=column,
                row=None,
                value="<missing>" if count == 0 else f"{count} columns",
                remedy=f"have the column once; an Azure trace needs {', '.join(REQUIRED_COLUMNS)}",
            )


def _time(cell: Cell) -> tuple[int, float]:
    """Whole seconds and their fraction apart: a float of the sum would lose the 100 ns resolution."""
    if not isinstance(cell.value, str):
        raise cell.bad(_TIME_REMEDY)
    whole, _, rest = cell.value.strip().replace(",", ".").partition(".")  # ISO 8601 has either
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    try:
        moment = datetime.fromisoformat(whole + rest[len(digits) :])
    except ValueError as error:
        raise cell.bad(_TIME_REMEDY) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp()), float(f"0.{digits}") if digits else 0.0


def _recognises(head: bytes) -> bool:
    header = [name.strip().strip('"') for name in head_text(head).partition("\n")[0].split(",")]
    return any(column in header for column in REQUIRED_COLUMNS)


READER = TraceReader(
    name="azure",
    files="Azure CSV",
    rows="TIMESTAMP, ContextTokens, GeneratedTokens",
    recognises=_recognises,
    read_facts=lambda path: TraceFacts(),
    iter_records=iter_records,
)
