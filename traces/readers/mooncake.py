"""Reads Mooncake's JSONL traces (FAST'25 release): timestamp in ms, input_length, output_length, hash_ids."""

import json
from collections.abc import Iterator
from pathlib import Path

from traces.errors import BadTraceFile
from traces.readers.entry import TraceFacts, TraceReader, head_text
from traces.readers.fields import Cell
from traces.record import TraceRecord

BLOCK_TOKENS = 512
REQUIRED_KEYS = ("timestamp", "input_length", "output_length")
_MS_PER_S = 1000.0


def iter_records(path: Path, facts: TraceFacts) -> Iterator[TraceRecord]:
    """Yields one record per line, in the order of the file and with its times. Blank lines are skipped.

    Raises:
        BadTraceFile: a line is not such an object, or holds a value that no request can have.
    """
    with path.open("rb") as lines:
        for row, line in enumerate(lines, start=1):
            if line.strip():
                yield _record(path, row, line)


def _record(path: Path, row: int, line: bytes) -> TraceRecord:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:  # JSONDecodeError, UnicodeDecodeError; nested thousands deep
        raise BadTraceFile(
            path=path, field="line", row=row, value=line[:60], remedy="make the line one JSON object"
        ) from error
    if not isinstance(values, dict):
        raise BadTraceFile(path=path, field="line", row=row, value=values, remedy="make the line one JSON object")
    if "chat_id" in values:
        raise BadTraceFile(
            path=path,
            field="chat_id",
            row=row,
            value=values["chat_id"],
            remedy="this is not a Mooncake trace (Qwen-Bailian's rows look alike but count seconds); convert the times "
            "to milliseconds and remove the field",
        )
    for key in REQUIRED_KEYS:
        if key not in values:
            raise BadTraceFile(
                path=path,
                field=key,
                row=row,
                value="<missing>",
                remedy=f"add the key; a Mooncake line needs {', '.join(REQUIRED_KEYS)}",
            )
    return TraceRecord(
        arrival_s=Cell(path, row, "timestamp", values["timestamp"]).seconds() / _MS_PER_S,
        input_tokens=Cell(path, row, "input_length", values["input_length"]).tokens(minimum=1),
        output_tokens=Cell(path, row, "output_length", values["output_length"]).tokens(minimum=0),
        prefix_block_hashes=Cell(path, row, "hash_ids", values.get("hash_ids")).block_hashes(),
    )


READER = TraceReader(
    name="mooncake",
    files="Mooncake JSONL",
    rows="timestamp in ms (rounded to 3 s), input_length, output_length, hash_ids of blocks of 512 tokens",
    recognises=lambda head: head_text(head).startswith("{"),
    read_facts=lambda path: TraceFacts(block_tokens=BLOCK_TOKENS),
    iter_records=iter_records,
)
