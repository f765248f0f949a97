"""Writes a trace in this package's parquet schema, so that `read_trace` gives the same trace back."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from traces.trace import Trace

SCHEMA_VERSION = "1"


def write_trace(trace: Trace, path: Path | str) -> None:
    """Raises OSError where the file cannot be written."""
    metadata = {**trace.metadata, "name": trace.name, "schema_version": SCHEMA_VERSION}
    if trace.block_tokens is not None:
        metadata["block_tokens"] = str(trace.block_tokens)
    schema = pa.schema(
        [
            pa.field("arrival_s", pa.float64()),
            pa.field("input_tokens", pa.int32()),
            pa.field("output_tokens", pa.int32()),
            pa.field("model", pa.string()),
            pa.field("session_id", pa.string()),
            pa.field("prefix_block_hashes", pa.list_(pa.int64())),
        ],
        metadata=metadata,
    )
    columns = {
        "arrival_s": [r.arrival_s if trace.has_arrivals else None for r in trace.records],
        "input_tokens": [r.input_tokens for r in trace.records],
        "output_tokens": [r.output_tokens for r in trace.records],
        "model": [r.model for r in trace.records],
        "session_id": [r.session_id for r in trace.records],
        "prefix_block_hashes": [list(r.prefix_block_hashes) or None for r in trace.records],
    }
    pq.write_table(pa.table(columns, schema=schema), path, compression="zstd")
