"""Reads the parquet schema of this package: one row per request, file-level facts in the metadata."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from traces.errors import BadTraceFile, TraceUnreadable
from traces.readers.entry import TraceFacts, TraceReader
from traces.readers.fields import MAX_TOKENS, Cell
from traces.record import TraceRecord

MAGIC = b"PAR1"
REQUIRED_COLUMNS = ("arrival_s", "input_tokens", "output_tokens")
OPTIONAL_COLUMNS = ("model", "session_id", "prefix_block_hashes")
_BATCH_ROWS = 4096
_MOST_DIGITS = 9
_REMEDY = "write the file again; it is not a complete parquet file"


def read_facts(path: Path) -> TraceFacts:
    """Reads the footer only.

    Raises:
        TraceUnreadable: the footer is broken.
        BadTraceFile: a required column is missing, or one is there twice, or `block_tokens` is no size of blocks.
    """
    with _opened(path) as file:
        names = file.schema_arrow.names
        for column in (*REQUIRED_COLUMNS, *OPTIONAL_COLUMNS):
            count, needed = names.count(column), column in REQUIRED_COLUMNS
            if count > 1 or (needed and not count):
                raise BadTraceFile(
                    path=path,
                    field=column,
                    row=None,
                    value=f"{count} columns" if count else "<missing>",
                    remedy=f"have the column once; a trace needs {', '.join(REQUIRED_COLUMNS)}",
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
    if not text.isdecimal() or len(text) > _MOST_DIGITS or int(text) < 1:
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


_TEXTS = ("model", "session_id")


def is_plain(batch: pa.RecordBatch, *, has_blocks: bool) -> bool:
    """Says whether every value of the batch is one that a request can have, of the type that a writer of traces gives
    it. False where that is not plain: `fields.Cell` then says which value is wrong, or takes it after all.
    """
    arrivals = batch.column("arrival_s")
    if not pa.types.is_float64(arrivals.type) or arrivals.null_count:
        return False
    if not np.isfinite(arrivals.to_numpy()).all():
        return False
    if not (_are_tokens(batch.column("input_tokens"), 1) and _are_tokens(batch.column("output_tokens"), 0)):
        return False
    names = batch.schema.names
    if not all(_are_texts(batch.column(name)) for name in _TEXTS if name in names):
        return False
    return "prefix_block_hashes" not in names or _are_blocks(batch.column("prefix_block_hashes"), has_blocks)


def plain_records(batch: pa.RecordBatch) -> Iterator[TraceRecord]:
    """Yields the records of a batch that `is_plain`."""
    names = batch.schema.names
    nothing: Iterable[None] = [None] * batch.num_rows
    models, sessions = (batch.column(name).to_pylist() if name in names else nothing for name in _TEXTS)
    columns = (batch.column(name).to_pylist() for name in ("arrival_s", "input_tokens", "output_tokens"))
    for arrival_s, input_tokens, output_tokens, model, session_id, hashes in zip(
        *columns, models, sessions, _hashes(batch), strict=True
    ):
        yield TraceRecord(
            arrival_s=arrival_s,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            model=model,
            session_id=session_id,
            prefix_block_hashes=hashes,
        )


def _are_tokens(column: pa.Array, minimum: int) -> bool:
    if not pa.types.is_integer(column.type) or column.null_count:
        return False
    counts = column.to_numpy()
    return not len(counts) or bool(counts.min() >= minimum and counts.max() <= MAX_TOKENS)


def _are_texts(column: pa.Array) -> bool:
    if pa.types.is_null(column.type):
        return True
    return pa.types.is_string(column.type) and "" not in column.to_pylist()


def _are_blocks(column: pa.Array, has_blocks: bool) -> bool:
    if pa.types.is_null(column.type):
        return True
    if not pa.types.is_list(column.type) or not pa.types.is_integer(column.type.value_type):
        return False
    ids = column.flatten()
    return not ids.null_count and (has_blocks or not len(ids))


def _hashes(batch: pa.RecordBatch) -> Iterable[tuple[int, ...]]:
    if "prefix_block_hashes" not in batch.schema.names:
        return [()] * batch.num_rows
    column = batch.column("prefix_block_hashes")
    if pa.types.is_null(column.type):
        return [()] * batch.num_rows
    ids, ends = column.flatten().to_pylist(), np.cumsum(column.value_lengths().fill_null(0).to_numpy()).tolist()
    starts = [0, *ends]
    return [tuple(ids[start:end]) for start, end in zip(starts, ends, strict=False)]
