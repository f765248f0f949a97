import json

import pyarrow.parquet as pq
import pytest

from traces.outcome import Ending, RequestOutcome, write_outcomes_parquet
from traces.report import attains, summarize, was_in_time
from traces.timeliness import SloTarget

TARGET = SloTarget(ttft_s=1.0, tbt_s=0.1)


def outcome(**changes):
    values = {
        "index": 0,
        "model": "a",
        "ending": Ending.FINISHED,
        "scheduled_s": 0.0,
        "sent_s": 0.0,
        "end_s": 10.0,
        "ttft_s": 0.5,
        "gaps_s": (0.05, 0.05),
        "input_tokens": 8,
        "requested_tokens": 3,
        "output_tokens": 3,
        "finish_reason": "length",
        "status_code": 200,
    }
    return RequestOutcome(**{**values, **changes})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"ttft_s": 1.0}, True),
        ({"ttft_s": 1.001}, False),
        ({"ttft_s": None}, False),
        ({"gaps_s": ()}, True),
        ({"gaps_s": (0.1,) * 5}, True),
        ({"gaps_s": (0.05,) * 99 + (0.2,)}, True),
        ({"gaps_s": (0.05,) * 98 + (0.2,)}, False),
        ({"gaps_s": (0.05,) * 98 + (0.2,) * 2}, False),
        ({"ending": Ending.LOST}, False),
        ({"ending": Ending.REJECTED}, False),
        ({"ending": Ending.FAILED}, False),
    ],
)
def test_attains__an_outcome__judged_by_first_token_and_99_percent_of_gaps(changes, expected):
    assert attains(outcome(**changes), TARGET) is expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"gaps_s": (0.05,) * 199 + (0.2,)}, False),
        ({"gaps_s": (0.2,) + (0.01,) * 199}, False),
        ({"ttft_s": 1.001}, False),
        ({"ending": Ending.LOST}, False),
        ({"ending": Ending.REJECTED}, False),
    ],
)
def test_was_in_time__an_outcome__judged_by_first_token_and_every_gap(changes, expected):
    assert was_in_time(outcome(**changes), TARGET) is expected


def test_summarize__requests_with_one_late_gap__count_in_gaps_and_not_in_requests():
    outcomes = [outcome(), outcome(gaps_s=(0.05,) * 99 + (0.2,)), outcome(ttft_s=2.0, gaps_s=()), outcome(model="free")]

    total = summarize(outcomes, {"a": TARGET}).total

    assert total.request_attainment == pytest.approx(1 / 3)
    assert total.slo_attainment == pytest.approx(2 / 3)
    assert total.ttft_attainment == pytest.approx(2 / 3)
    assert total.tbt_attainment == pytest.approx(101 / 102)
    assert total.requests_in_time_per_s == pytest.approx(0.1)
    assert total.goodput_per_s == pytest.approx(0.2)


def test_summarize__mixed_endings__counts_shares_and_rates():
    outcomes = [
        outcome(end_s=4.0, output_tokens=20),
        outcome(sent_s=1.0, end_s=5.0, ttft_s=2.0, output_tokens=10),
        outcome(ending=Ending.LOST, end_s=900.0, ttft_s=None, gaps_s=(), output_tokens=0),
        outcome(model="b", ending=Ending.REJECTED, end_s=0.1, ttft_s=None, gaps_s=(), output_tokens=0),
    ]

    summary = summarize(outcomes, {"a": TARGET, "b": TARGET})

    a, b, total = summary.models["a"], summary.models["b"], summary.total
    assert (a.requests, a.finished, a.lost, a.rejected, a.failed) == (3, 2, 1, 0, 0)
    assert (b.requests, b.rejected, b.slo_attainment) == (1, 1, 0.0)
    assert a.slo_attainment == pytest.approx(1 / 3)
    assert total.slo_attainment == pytest.approx(1 / 4)
    assert summary.duration_s == 5.0  # a request that is lost at 900 s does not stretch the window
    assert a.output_tokens_per_s == total.output_tokens_per_s == pytest.approx(6.0)
    assert total.goodput_per_s == pytest.approx(0.2)
    assert (a.ttft_s.p50, a.ttft_s.p99) == pytest.approx((1.25, 1.985))
    assert total.requests == a.requests + b.requests


def test_summarize__tbt__percentiles_are_over_all_gaps_of_all_requests():
    summary = summarize([outcome(gaps_s=(0.1,) * 98), outcome(gaps_s=(0.5, 0.5))], {"a": TARGET})

    assert summary.total.tbt_s.p50 == pytest.approx(0.1)
    assert summary.total.tbt_s.p99 == pytest.approx(0.5)


def test_summarize__late_client__send_lag_says_so():
    summary = summarize([outcome(scheduled_s=1.0, sent_s=1.5)], {})

    assert summary.total.send_lag_s.p50 == pytest.approx(0.5)


def test_summarize__model_without_target__attainment_is_null_and_total_judges_the_others():
    summary = summarize([outcome(), outcome(model="free", ttft_s=99.0)], {"a": TARGET})

    assert summary.models["free"].slo_attainment is None
    assert summary.models["free"].goodput_per_s is None
    assert summary.total.slo_attainment == 1.0


def test_summarize__nothing_measured__is_null_in_json_never_nan():
    text = json.dumps(summarize([], {"a": TARGET}).as_dict(), allow_nan=False)

    figures = json.loads(text)["models"]["a"]
    assert figures["requests"] == 0
    assert figures["ttft_s"] == {"p50": None, "p99": None}
    assert figures["slo_attainment"] is None
    assert figures["output_tokens_per_s"] is None


def test_as_dict__shape__is_what_scripts_rely_on():
    summary = summarize([outcome(), outcome(model="b")], {"a": TARGET})

    data = summary.as_dict()

    assert set(data) == {"models", "total"}
    assert set(data["models"]) == {"a", "b"}
    for figures in (*data["models"].values(), data["total"]):
        assert figures.keys() >= {
            "requests",
            "lost",
            "ttft_s",
            "tbt_s",
            "slo_attainment",
            "request_attainment",
            "output_tokens_per_s",
        }
        assert set(figures["ttft_s"]) == set(figures["tbt_s"]) == {"p50", "p99"}
    assert [name for name, _ in summary.rows()] == ["a", "b", "total"]


def test_write_outcomes_parquet__outcomes_and_metadata__read_back_row_by_row(tmp_path):
    outcomes = [
        outcome(),
        outcome(index=1, ending=Ending.LOST, ttft_s=None, gaps_s=(), finish_reason=None, error="cut"),
    ]
    path = tmp_path / "outcomes.parquet"

    write_outcomes_parquet(outcomes, path, {"trace": "azure"})

    table = pq.read_table(path)
    assert table.schema.metadata[b"trace"] == b"azure"
    rows = table.to_pylist()
    assert [row["ending"] for row in rows] == ["finished", "lost"]
    assert (rows[0]["gaps_s"], rows[0]["ttft_s"], rows[0]["status_code"]) == ([0.05, 0.05], 0.5, 200)
    assert (rows[1]["gaps_s"], rows[1]["ttft_s"], rows[1]["error"]) == ([], None, "cut")


def test_write_outcomes_parquet__none__an_empty_table_with_all_columns(tmp_path):
    write_outcomes_parquet([], tmp_path / "o.parquet")

    assert "gaps_s" in pq.read_table(tmp_path / "o.parquet").column_names
