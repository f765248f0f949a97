"""Builds the trace files that the readers' tests read."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from traces.trace import Trace

SCHEMA_VERSION = "1"
AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


def write_azure(path: Path, *rows: str, header: str = AZURE_HEADER) -> Path:
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def write_mooncake(path: Path, *rows: object) -> Path:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows), encoding="utf-8")
    return path


def mooncake_row(**changes: object) -> dict[str, object]:
    row = {"timestamp": 0, "input_length": 1000, "output_length": 10, "hash_ids": [0, 1]}
    return {k: v for k, v in {**row, **changes}.items() if v != "<drop>"}


def write_parquet(path: Path, metadata: dict[str, str] | None = None, **columns: object) -> Path:
    table = {"arrival_s": [0.0, 1.0], "input_tokens": [5, 6], "output_tokens": [7, 8], **columns}
    arrays = {name: column for name, column in table.items() if column is not None}
    pq.write_table(pa.table(arrays).replace_schema_metadata(metadata or {}), path)
    return path


def write_trace(trace: Trace, path: Path | str) -> None:
    """In the parquet schema of the package, so that `read_trace` gives the same trace back."""
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
