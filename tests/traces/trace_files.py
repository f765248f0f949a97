"""Builds the trace files that the readers' tests read."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

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
