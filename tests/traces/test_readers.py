import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from trace_files import mooncake_row, write_azure, write_mooncake, write_parquet, write_trace

from traces.errors import BadParameter, BadTraceFile, TraceUnreadable
from traces.readers import parquet
from traces.readers.registry import iter_trace, read_trace
from traces.record import TraceRecord
from traces.trace import Trace


def test_read_trace__mooncake__milliseconds_become_seconds_and_blocks_have_512_tokens(tmp_path):
    path = write_mooncake(
        tmp_path / "conversation.jsonl", mooncake_row(), mooncake_row(timestamp=3000, hash_ids=[0, 2])
    )

    trace = read_trace(path)

    assert (trace.name, trace.block_tokens, trace.has_arrivals) == ("conversation", 512, True)
    assert trace.records == (
        TraceRecord(arrival_s=0.0, input_tokens=1000, output_tokens=10, prefix_block_hashes=(0, 1)),
        TraceRecord(arrival_s=3.0, input_tokens=1000, output_tokens=10, prefix_block_hashes=(0, 2)),
    )


def test_read_trace__azure__times_count_from_the_first_row_at_full_resolution(tmp_path):
    path = write_azure(
        tmp_path / "conv.csv",
        "2023-11-16 18:17:03.9799600,4808,10",
        "2023-11-16 18:17:04.0319601,3180,8",
        "2023-11-16 18:18:04,110,27",
    )

    trace = read_trace(path)

    assert [r.arrival_s for r in trace.records] == pytest.approx([0.0, 0.0520001, 60.02004], abs=1e-9)
    assert [(r.input_tokens, r.output_tokens) for r in trace.records] == [(4808, 10), (3180, 8), (110, 27)]


def test_read_trace__azure_with_byte_order_mark_crlf_and_time_zone__is_read(tmp_path):
    path = tmp_path / "week.csv"
    path.write_bytes(
        b"\xef\xbb\xbfTIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        b"2024-05-10 00:00:00.009930+00:00,2162,5\r\n2024-05-10 00:00:01.009930+00:00,2399,6\r\n"
    )

    trace = read_trace(path)

    assert [r.arrival_s for r in trace.records] == pytest.approx([0.0, 1.0])


def test_read_trace__azure_with_decimal_commas__keeps_fractions(tmp_path):
    path = write_azure(tmp_path / "c.csv", '"2023-11-16 18:17:03,5",1,1', '"2023-11-16 18:17:04,25",1,1')

    assert [r.arrival_s for r in read_trace(path).records] == pytest.approx([0.0, 0.75])


@pytest.mark.parametrize("twice", ["arrival_s", "model"])
def test_read_trace__parquet_with_a_column_twice__names_it(tmp_path, twice):
    columns = {"arrival_s": [0.0], "input_tokens": [1], "output_tokens": [1], "model": ["a"]}
    table = pa.table(columns)
    pq.write_table(table.append_column(twice, table.column(twice)), tmp_path / "t.parquet")

    with pytest.raises(BadTraceFile, match=f"{twice}='2 columns'"):
        read_trace(tmp_path / "t.parquet")


def test_read_trace__parquet__all_columns_and_metadata_survive(tmp_path):
    path = write_parquet(
        tmp_path / "t.parquet",
        {"name": "mine", "block_tokens": "16", "licence": "MIT"},
        model=["a", None],
        session_id=[None, "s"],
        prefix_block_hashes=[[1, 2], None],
    )

    trace = read_trace(path)

    assert (trace.name, trace.block_tokens, trace.metadata["licence"]) == ("mine", 16, "MIT")
    assert trace.records == (
        TraceRecord(arrival_s=0.0, input_tokens=5, output_tokens=7, model="a", prefix_block_hashes=(1, 2)),
        TraceRecord(arrival_s=1.0, input_tokens=6, output_tokens=8, session_id="s"),
    )


def test_read_trace__parquet_with_null_arrivals_only__is_a_set_of_lengths(tmp_path):
    path = write_parquet(tmp_path / "t.parquet", arrival_s=pa.array([None, None], pa.float64()))

    trace = read_trace(path)

    assert not trace.has_arrivals
    assert [r.arrival_s for r in trace.records] == [0.0, 0.0]


def test_read_trace__wrong_suffix__content_decides(tmp_path):
    path = write_parquet(tmp_path / "t.csv")

    assert len(read_trace(path).records) == 2


def test_read_trace__rows_out_of_order_and_late_start__sorted_and_rebased_to_zero(tmp_path):
    path = write_parquet(tmp_path / "t.parquet", arrival_s=[7.5, 4.0])

    trace = read_trace(path)

    assert [(r.arrival_s, r.input_tokens) for r in trace.records] == [(0.0, 6), (3.5, 5)]


def test_read_trace__limit__later_rows_are_not_even_looked_at(tmp_path):
    path = write_mooncake(tmp_path / "t.jsonl", mooncake_row(), mooncake_row(timestamp=5), "not json")

    assert len(read_trace(path, limit=2).records) == 2


def test_read_trace__limit_below_one__is_refused(tmp_path):
    with pytest.raises(BadParameter, match="limit=0"):
        read_trace(write_mooncake(tmp_path / "t.jsonl", mooncake_row()), limit=0)


def test_read_trace__tick_jitter__spreads_inside_ticks(tmp_path):
    rows = [mooncake_row(timestamp=3000 * (i // 10)) for i in range(30)]
    path = write_mooncake(tmp_path / "t.jsonl", *rows)

    trace = read_trace(path, jitter="tick", seed=3)

    assert [int(r.arrival_s // 3) for r in trace.records] == [i // 10 for i in range(30)]
    assert len({r.arrival_s for r in trace.records}) == 30


def test_iter_trace__bad_last_row__earlier_rows_are_yielded_first(tmp_path):
    path = write_mooncake(tmp_path / "t.jsonl", mooncake_row(), "{")
    records = iter_trace(path)

    assert next(records).input_tokens == 1000
    with pytest.raises(BadTraceFile, match="row 2"):
        next(records)


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"timestamp": "<drop>"}, "timestamp"),
        ({"input_length": "<drop>"}, "input_length"),
        ({"timestamp": "12"}, "timestamp"),
        ({"timestamp": None}, "timestamp"),
        ({"timestamp": float("nan")}, "timestamp"),
        ({"timestamp": float("inf")}, "timestamp"),
        ({"timestamp": 10**400}, "timestamp"),
        ({"timestamp": True}, "timestamp"),
        ({"input_length": 0}, "input_length"),
        ({"input_length": -5}, "input_length"),
        ({"input_length": 3.5}, "input_length"),
        ({"input_length": True}, "input_length"),
        ({"input_length": [1]}, "input_length"),
        ({"input_length": 10**30}, "input_length"),
        ({"output_length": -1}, "output_length"),
        ({"output_length": None}, "output_length"),
        ({"hash_ids": 7}, "hash_ids"),
        ({"hash_ids": [1, "2"]}, "hash_ids"),
        ({"hash_ids": [1.5]}, "hash_ids"),
        ({"chat_id": 9}, "chat_id"),
    ],
)
def test_read_trace__bad_mooncake_value__error_names_file_field_row_and_remedy(tmp_path, row, field):
    path = write_mooncake(tmp_path / "bad.jsonl", mooncake_row(), mooncake_row(**row))

    with pytest.raises(BadTraceFile) as caught:
        read_trace(path)

    error = caught.value
    assert (error.path, error.field, error.row) == (path, field, 2)
    assert error.remedy in str(error)
    assert "bad.jsonl, row 2" in str(error)


@pytest.mark.parametrize("line", ["{", "[1, 2]", "7", '"text"', "{'timestamp': 1}", "[" * 100_000])
def test_read_trace__mooncake_line_that_is_no_object__is_refused(tmp_path, line):
    path = write_mooncake(tmp_path / "bad.jsonl", mooncake_row(), line)

    with pytest.raises(BadTraceFile, match=r"row 2.*one JSON object"):
        read_trace(path)


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ("yesterday,5,6", "TIMESTAMP"),
        (",5,6", "TIMESTAMP"),
        ("2023-11-16 25:00:00.0,5,6", "TIMESTAMP"),
        ("2023-11-16 18:17:03.1,five,6", "ContextTokens"),
        ("2023-11-16 18:17:03.1,,6", "ContextTokens"),
        ("2023-11-16 18:17:03.1,0,6", "ContextTokens"),
        ("2023-11-16 18:17:03.1,99999999999999999999,6", "ContextTokens"),
        ("2023-11-16 18:17:03.1,5,-6", "GeneratedTokens"),
        ("2023-11-16 18:17:03.1,5,6.5", "GeneratedTokens"),
        ("2023-11-16 18:17:03.1,5", "GeneratedTokens"),
        ("2023-11-16 18:17:03.1,1,155,211", "line"),
    ],
)
def test_read_trace__bad_azure_value__error_names_field_and_row(tmp_path, row, field):
    path = write_azure(tmp_path / "bad.csv", "2023-11-16 18:17:03.0,5,6", row)

    with pytest.raises(BadTraceFile) as caught:
        read_trace(path)

    assert (caught.value.field, caught.value.row) == (field, 2)


def test_read_trace__azure_with_spaces_after_commas__is_read(tmp_path):
    header = "TIMESTAMP, ContextTokens, GeneratedTokens"
    path = write_azure(tmp_path / "t.csv", '2023-11-16 18:17:03, 5, "6"', header=header)
    assert [(r.input_tokens, r.output_tokens) for r in read_trace(path).records] == [(5, 6)]


def test_read_trace__azure_with_a_column_twice__names_it(tmp_path):
    header = "TIMESTAMP,ContextTokens,ContextTokens,GeneratedTokens"
    path = write_azure(tmp_path / "bad.csv", "2023-11-16 18:17:03.0,5,6,7", header=header)

    with pytest.raises(BadTraceFile, match="ContextTokens='2 columns'"):
        read_trace(path)


def test_read_trace__azure_without_a_column__names_it(tmp_path):
    path = write_azure(tmp_path / "bad.csv", "2023-11-16 18:17:03.0,5", header="TIMESTAMP,ContextTokens")

    with pytest.raises(BadTraceFile, match="GeneratedTokens"):
        read_trace(path)


def test_read_trace__azure_not_utf8__is_refused(tmp_path):
    path = tmp_path / "bad.csv"
    path.write_bytes(b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.0,5,\xff\xfe\n")

    with pytest.raises(BadTraceFile, match="UTF-8"):
        read_trace(path)


@pytest.mark.parametrize(
    ("columns", "field"),
    [
        ({"arrival_s": [0.0, None]}, "arrival_s"),
        ({"arrival_s": [0.0, float("nan")]}, "arrival_s"),
        ({"arrival_s": ["0", "x"]}, "arrival_s"),
        ({"input_tokens": [5, 0]}, "input_tokens"),
        ({"input_tokens": [5, None]}, "input_tokens"),
        ({"input_tokens": [5.0, 5.5]}, "input_tokens"),
        ({"input_tokens": [5, 2**62]}, "input_tokens"),
        ({"output_tokens": [5, -1]}, "output_tokens"),
        ({"model": ["a", ""]}, "model"),
        ({"model": [None, 3]}, "model"),
    ],
)
def test_read_trace__bad_parquet_value__error_names_field_and_row(tmp_path, columns, field):
    path = write_parquet(tmp_path / "bad.parquet", **columns)

    with pytest.raises(BadTraceFile) as caught:
        read_trace(path)

    assert caught.value.field == field
    assert caught.value.row in (1, 2)  # a column of a wrong type is already wrong in row 1


@pytest.mark.parametrize("column", ["arrival_s", "input_tokens", "output_tokens"])
def test_read_trace__parquet_without_a_column__names_it(tmp_path, column):
    path = write_parquet(tmp_path / "bad.parquet", **{column: None})

    with pytest.raises(BadTraceFile, match=column):
        read_trace(path)


@pytest.mark.parametrize(
    "metadata", [{}, {"block_tokens": "0"}, {"block_tokens": "many"}, {"block_tokens": "9" * 5000}]
)
def test_read_trace__parquet_with_hashes_but_no_block_size__is_refused(tmp_path, metadata):
    path = write_parquet(tmp_path / "bad.parquet", metadata, prefix_block_hashes=[[1], [1]])

    with pytest.raises(BadTraceFile, match="block_tokens"):
        read_trace(path)


def test_read_trace__truncated_parquet__is_unreadable_with_a_remedy(tmp_path):
    whole = write_parquet(tmp_path / "whole.parquet").read_bytes()
    path = tmp_path / "cut.parquet"
    path.write_bytes(whole[: len(whole) // 2])

    with pytest.raises(TraceUnreadable, match=r"cut\.parquet"):
        read_trace(path)


def test_read_trace__parquet_with_broken_pages__is_unreadable(tmp_path):
    whole = bytearray(
        write_parquet(
            tmp_path / "whole.parquet",
            arrival_s=[float(i) for i in range(5000)],
            input_tokens=list(range(1, 5001)),
            output_tokens=[1] * 5000,
        ).read_bytes()
    )
    whole[4:200] = b"\xff" * 196
    path = tmp_path / "broken.parquet"
    path.write_bytes(bytes(whole))

    with pytest.raises(TraceUnreadable, match="broken"):
        read_trace(path)


@pytest.mark.parametrize("content", [b"", b"   \n", b"a,b,c\n1,2,3\n", b"\x1f\x8b\x08\x00zip", b"[{}]"])
def test_read_trace__unknown_content__says_what_it_reads(tmp_path, content):
    path = tmp_path / "t.jsonl"
    path.write_bytes(content)

    with pytest.raises(TraceUnreadable, match="Mooncake JSONL"):
        read_trace(path)


def test_read_trace__no_file_or_a_directory__is_unreadable(tmp_path):
    with pytest.raises(TraceUnreadable, match="No such file"):
        read_trace(tmp_path / "absent.parquet")
    with pytest.raises(TraceUnreadable, match="directory"):
        read_trace(tmp_path)


def test_read_trace__pipe__is_refused_before_anything_is_read_from_it(tmp_path):
    """What is read to recognise the format would be lost to the reader."""
    os.mkfifo(tmp_path / "pipe")
    reading = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    writing = os.open(tmp_path / "pipe", os.O_WRONLY)
    os.write(writing, b'{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [0]}')
    os.close(writing)

    with pytest.raises(TraceUnreadable, match="is a pipe, and a trace is read more than once; write it into a file"):
        read_trace(tmp_path / "pipe")

    assert os.read(reading, 5) == b'{"tim'
    os.close(reading)


def test_read_trace__header_only__is_refused(tmp_path):
    with pytest.raises(TraceUnreadable, match="no request"):
        read_trace(write_azure(tmp_path / "t.csv"))


def test_write_trace__read_back__is_the_same_trace(tmp_path):
    trace = Trace(
        name="round trip",
        records=(
            TraceRecord(arrival_s=0.0, input_tokens=20, output_tokens=0, model="m", prefix_block_hashes=(3, -4)),
            TraceRecord(arrival_s=0.125, input_tokens=9, output_tokens=2, session_id="s"),
        ),
        block_tokens=16,
        metadata={"licence": "MIT"},
    )

    write_trace(trace, tmp_path / "t.parquet")
    back = read_trace(Path(tmp_path / "t.parquet"))

    assert (back.name, back.records, back.block_tokens) == (trace.name, trace.records, trace.block_tokens)
    assert back.metadata["licence"] == "MIT"


def test_write_trace__lengths_only__stay_lengths_only(tmp_path):
    trace = Trace(name="l", records=(TraceRecord(arrival_s=0.0, input_tokens=1, output_tokens=1),), has_arrivals=False)

    write_trace(trace, tmp_path / "t.parquet")

    assert not read_trace(tmp_path / "t.parquet").has_arrivals


ODD_COLUMNS = {
    "tokens as floats": {"input_tokens": [5.0, 6.0]},
    "times as whole numbers": {"arrival_s": [0, 1]},
    "no model known": {"model": pa.array([None, None], pa.null())},
    "sessions of some": {"session_id": ["s", None]},
    "blocks of some, as short numbers": {"prefix_block_hashes": pa.array([[1, 2], None], pa.list_(pa.int32()))},
    "no blocks": {"prefix_block_hashes": pa.array([[], None], pa.list_(pa.int64()))},
    "a part of a longer column": {"model": pa.array(["x", "a", "b"])[1:]},
}


@pytest.mark.parametrize("case", ODD_COLUMNS)
def test_parquet__columns_read_at_once__records_are_those_of_reading_one_by_one(case, tmp_path, monkeypatch):
    path = write_parquet(tmp_path / "t.parquet", {"block_tokens": "16"}, **ODD_COLUMNS[case])
    at_once = list(iter_trace(path))
    monkeypatch.setattr(parquet, "is_plain", lambda batch, *, has_blocks: False)

    assert at_once == list(iter_trace(path))
    assert [type(r.arrival_s) for r in at_once] == [float, float]
    assert len(at_once) == 2
