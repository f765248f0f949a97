"""Defines what became of a replayed request."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from traces.whole_file import write_whole

SCHEMA_VERSION = "1"


class Ending(StrEnum):
    FINISHED = "finished"  # a finish reason arrived
    REJECTED = "rejected"  # 429 or 503: the server said "not now"
    FAILED = "failed"  # any other error answer, before or inside the stream
    LOST = "lost"  # no terminal answer: connection broken, stream cut, timeout


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutcome:
    """Times count from the start of the replay, except `ttft_s`, which counts from `sent_s`.

    `gaps_s` are the times between arrivals of chunks with text. A server may put several tokens into a chunk, so
    `output_tokens` (the server's usage where it was sent) can exceed `len(gaps_s) + 1`.
    """

    index: int
    model: str
    ending: Ending
    scheduled_s: float
    sent_s: float
    end_s: float
    ttft_s: float | None
    gaps_s: tuple[float, ...]
    input_tokens: int
    requested_tokens: int
    output_tokens: int
    finish_reason: str | None = None
    status_code: int | None = None
    error: str | None = None


def write_outcomes_parquet(
    outcomes: Sequence[RequestOutcome], path: Path | str, metadata: Mapping[str, str] | None = None
) -> None:
    """One row per request, columns named as the fields. Raises OSError where the file cannot be written."""
    types = {
        "index": pa.int64(),
        "model": pa.string(),
        "ending": pa.string(),
        "scheduled_s": pa.float64(),
        "sent_s": pa.float64(),
        "end_s": pa.float64(),
        "ttft_s": pa.float64(),
        "gaps_s": pa.list_(pa.float64()),
        "input_tokens": pa.int64(),
        "requested_tokens": pa.int64(),
        "output_tokens": pa.int64(),
        "finish_reason": pa.string(),
        "status_code": pa.int32(),
        "error": pa.string(),
    }
    schema = pa.schema(
        [pa.field(name, kind) for name, kind in types.items()],
        metadata={**(metadata or {}), "schema_version": SCHEMA_VERSION},
    )
    columns = {name: [getattr(outcome, name) for outcome in outcomes] for name in types}
    columns["ending"] = [outcome.ending.value for outcome in outcomes]
    written = io.BytesIO()
    pq.write_table(pa.table(columns, schema=schema), written, compression="zstd")
    write_whole(Path(path), written.getvalue())
