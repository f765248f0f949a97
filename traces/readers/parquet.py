"""Reads the parquet schema of this package: one row per request, file-level facts in the metadata."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from traces.errors import BadTraceFile, TraceUnreadable
from traces.readers.fields import Cell
from traces.readers.plain_rows import is_plain, plain_records
from traces.readers.entry import TraceFacts, TraceReader
from traces.record import TraceRecord

MAGIC = b"PAR1"
REQUIRED_COLUMNS = ("arrival_s", "input_tokens", "output_tokens")
OPTIONAL_COLUMNS = ("model", "session_id", "prefix_block_hashes")
_BATCH_ROWS = 4096
_REMEDY = "write the file again; it is not a complete parquet file"


def read_facts(path: Path) -> TraceFacts:
    """Reads the footer only.

    Raises:
        TraceUnreadable: the footer is broken.
        BadTraceFile: a required column is missing, or `block_tokens` is not a positive integer.
    """
    with _opened(path) as file:
        names = set(file.schema_arrow.names)
        for column in REQUIRED_COLUMNS:
            if column not in names:
                raise BadTraceFile(
                    path=path,
                    field=column,
                    row=None,
                    value="<missing>",
                    remedy=f"add the column; a trace needs {', '.join(REQUIRED_COLUMNS)}",
                )
        raw = file.schema_arrow.metadata or {}
        metadata = {
            key.decode(errors="replace"): value.decode(errors="replace")
            for key, value in raw.items()
            if key not in (b"ARROW:schema", b"pandas")
        }
        return TraceFacts(
            metadata=metadata,
            block_tokens=_block_tokens(path, metadata),
            has_arrivals=not _all_null(path, file, "arrival_s"),
        )


def iter_records(path: Path, facts: TraceFacts) -> Iterator[TraceRecord]:
    """Yields one record per row, in the order of the file and with its times; a few thousand rows are held at a time.

    Raises:
        TraceUnreadable: the file is broken.
        BadTraceFile: a row holds a value that no request can have, or block ids without `block_tokens` in the metadata.
    """
    row = 0
    with _opened(path) as file:
        columns = [c for c in (*REQUIRED_COLUMNS, *OPTIONAL_COLUMNS) if c in file.schema_arrow.names]
        for batch in _batches(path, file, columns):
            if facts.has_arrivals and is_plain(batch, has_blocks=facts.block_tokens is not None):
                yield from plain_records(batch)
                row += batch.num_rows
                continue
            for values in batch.to_pylist():  # looked at one by one: the first that is wrong is named
                row += 1
                yield _record(path, row, values, facts)


def _record(path: Path, row: int, values: Mapping[str, object], facts: TraceFacts) -> TraceRecord:
    def cell(field: str) -> Cell:
        return Cell(path, row, field, values.get(field))

    hashes = cell("prefix_block_hashes").block_hashes()
    if hashes and facts.block_tokens is None:
        raise BadTraceFile(
            path=path,
            field="block_tokens",
            row=None,
            value="<missing>",
            remedy="add the tokens per block to the file's metadata; prefix_block_hashes mean nothing without it",
        )
    return TraceRecord(
        arrival_s=cell("arrival_s").seconds() if facts.has_arrivals else 0.0,
        input_tokens=cell("input_tokens").tokens(minimum=1),
        output_tokens=cell("output_tokens").tokens(minimum=0),
        model=cell("model").optional_text(),
        session_id=cell("session_id").optional_text(),
        prefix_block_hashes=hashes,
    )


def _opened(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise TraceUnreadable(
            path=path, reason=f"broken parquet ({' '.join(str(error).split())})", remedy=_REMEDY
        ) from error


def _block_tokens(path: Path, metadata: Mapping[str, str]) -> int | None:
    text = metadata.get("block_tokens")
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise BadTraceFile(
            path=path,
            field="block_tokens",
            row=None,
            value=text,
            remedy="give the tokens per block as a positive integer in the file's metadata",
        )
    return int(text)


def _batches(path: Path, file: pq.ParquetFile, columns: list[str]) -> Iterator[pa.RecordBatch]:
    batches = file.iter_batches(batch_size=_BATCH_ROWS, columns=columns)
    while True:
        try:
            batch = next(batches, None)
        except (pa.ArrowException, OSError) as error:
            raise TraceUnreadable(
                path=path, reason=f"broken parquet ({' '.join(str(error).split())})", remedy=_REMEDY
            ) from error
        if batch is None:
            return
        yield batch


def _all_null(path: Path, file: pq.ParquetFile, column: str) -> bool:
    """Reads the column itself: statistics are optional in parquet."""
    seen = False
    for batch in _batches(path, file, [column]):
        if batch.column(0).null_count < batch.num_rows:
            return False
        seen = seen or batch.num_rows > 0
    return seen


READER = TraceReader(
    name="parquet",
    files="Parquet",
    rows="arrival_s, input_tokens, output_tokens; model, session_id and prefix_block_hashes where known",
    recognises=lambda head: head.startswith(MAGIC),
    read_facts=read_facts,
    iter_records=iter_records,
)
