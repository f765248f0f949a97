"""A trace file that a simulation takes its requests from is looked at once before the first of them comes."""

import itertools
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deploy.simulation import streams
from deploy.simulation.streams import trace_stream
from traces.errors import BadParameter, BadTraceFile
from traces.readers.registry import recognise

WEIGHTS = {"a": 1.0, "b": 3.0}


def write(path: Path, arrivals_s: list[float], **columns: object) -> Path:
    table = {"arrival_s": arrivals_s, "input_tokens": [9] * len(arrivals_s), "output_tokens": [3] * len(arrivals_s)}
    pq.write_table(pa.table({**table, **columns}), path)
    return path


@pytest.mark.parametrize("times_s", [[0.0, 0.0, 3.0, 3.0, 3.0, 9.0, 9.0], [5.0, 5.0, 8.0], [2.0, 2.0], [7.0]])
@pytest.mark.parametrize("spread_ticks", [False, True])
@pytest.mark.parametrize("rate_per_s", [None, 2.5])
def test_trace_stream__rows_read_once__count_and_span_are_those_of_its_records(
    times_s, spread_ticks, rate_per_s, tmp_path
):
    if rate_per_s is not None and times_s[0] == times_s[-1]:
        pytest.skip("all at once: there is no rate to scale")
    path = write(tmp_path / "trace.parquet", times_s)
    stream = trace_stream(path, WEIGHTS, seed=3, spread_ticks=spread_ticks, rate_per_s=rate_per_s)
    records = list(stream.records())

    assert stream.count == len(records) == len(times_s)
    assert stream.span_s == pytest.approx(records[-1].arrival_s, abs=1e-12)
    assert records[0].arrival_s == 0.0
    assert all(a.arrival_s <= b.arrival_s for a, b in itertools.pairwise(records))


def test_trace_stream__opened_and_run__file_is_read_once_for_each(tmp_path, monkeypatch):
    path, passes = write(tmp_path / "trace.parquet", [0.0, 1.0, 2.0]), []
    reader = recognise(path)
    counted = replace(reader, iter_records=lambda *args: passes.append(args) or reader.iter_records(*args))
    monkeypatch.setattr(streams, "recognise", lambda path: counted)

    stream = trace_stream(path, WEIGHTS, seed=0, spread_ticks=True, rate_per_s=4.0)
    assert len(passes) == 1
    list(stream.records())
    assert len(passes) == 2


@pytest.mark.parametrize(("rate_per_s", "gap"), [(None, "6.3e[+]10"), (1e-10, "3e[+]10")])
def test_trace_stream__millennia_between_two_requests__are_refused_by_their_row(tmp_path, rate_per_s, gap):
    """A control loop would tick through them for weeks."""
    path = write(tmp_path / "trace.parquet", [0.0, 1.0, 6.3e10])
    with pytest.raises(BadParameter, match=f"row 3 arrives {gap} s after the row above it"):
        trace_stream(path, WEIGHTS, seed=0, spread_ticks=False, rate_per_s=rate_per_s)


def test_trace_stream__row_before_the_one_above__is_named(tmp_path):
    path = write(tmp_path / "trace.parquet", [0.0, 2.0, 1.0])
    with pytest.raises(BadParameter, match="row 3 arrives before"):
        trace_stream(path, WEIGHTS, seed=0, spread_ticks=False)


def test_trace_stream__bad_row_behind_thousands_of_good_ones__is_named_before_anything_runs(tmp_path):
    tokens = [9] * 5000
    tokens[4499] = 0
    path = write(tmp_path / "trace.parquet", [float(i) for i in range(5000)], input_tokens=tokens)
    with pytest.raises(BadTraceFile, match=r"row 4500.*input_tokens|input_tokens.*row 4500"):
        trace_stream(path, WEIGHTS, seed=0, spread_ticks=False)


def test_trace_stream__models_that_the_fleet_has_not__are_drawn_and_told(tmp_path):
    models = ["gpt-9", "a", None, "zeta", "gpt-9", "tuned-b"]
    path = write(tmp_path / "trace.parquet", [float(i) for i in range(6)], model=models)
    stream = trace_stream(path, WEIGHTS, seed=0, spread_ticks=False, bases={"tuned-b": "b"})

    assert stream.unknown_models == ("gpt-9", "zeta")
    assert stream.first(2, None).unknown_models == stream.first(None, 3.0).unknown_models == stream.unknown_models
    assert {r.model for r in stream.records()} <= set(WEIGHTS)


def test_trace_stream__adapters_of_the_fleet__are_requests_of_their_base(tmp_path):
    path = write(tmp_path / "trace.parquet", [float(i) for i in range(30)], model=["tuned-b", "tuned-a"] * 15)
    stream = trace_stream(path, WEIGHTS, seed=0, spread_ticks=False, bases={"tuned-a": "a", "tuned-b": "b"})

    assert stream.unknown_models == ()
    assert [r.model for r in stream.records()] == ["b", "a"] * 15
