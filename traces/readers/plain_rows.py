"""Rows of a parquet file that are plainly right: checked by column, and read in a third of the time of one by one."""

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from traces.readers.fields import MAX_TOKENS
from traces.record import TraceRecord

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
