"""The published figures of the whole public files, and of the windows that keep all of a file."""

from bisect import bisect_right
from pathlib import Path

import pytest

from traces.errors import BadParameter
from traces.readers.registry import iter_trace, read_trace
from traces.record import TraceRecord
from traces.stats import describe, describe_models, prefix_hit_ratio
from traces.trace import Trace

SHARED = Path(__file__).parents[2].parent / "shared" / "traces"


def shared_trace(name, **options):
    path = SHARED / f"{name}.parquet"
    if not path.exists():
        pytest.skip(f"the public traces are not beside the repository ({path.name} is missing in ../shared/traces)")
    return read_trace(path, **options)


# name: requests, span_s, rate, peak, cv, fano, input min/mean/p50/p99/max, output min/mean/p50/p99/max, hit ratio
WHOLE_FILES = {
    "apex_lmsys_chat": (
        1_024, 2_023, 0.51, 1.5, 1.00, 0.8, (2, 62, 17, 586, 1_037), (1, 162, 117, 533, 761), None,
    ),
    "apex_summarization": (
        1_302, 5_184, 0.25, 1.9, 0.98, 1.0, (245, 2_753, 2_943, 4_075, 4_092), (51, 171, 162, 357, 458), None,
    ),
    "sharegpt_llama31_300": (
        300, 29, 10.3, 1.0, 0.94, None, (262, 857, 732, 2_765, 3_998), (512, 653, 632, 784, 1_021), 0.076,
    ),
    "exgentic_appworld_agent": (
        75, 4_750, 0.016, 13.7, 6.2, 6.8,
        (92_427, 94_903, 94_016, 104_361, 104_957), (51, 517, 208, 5_461, 6_063), 0.974,
    ),
}  # fmt: skip


@pytest.mark.shared
@pytest.mark.parametrize("name", sorted(WHOLE_FILES))
def test_describe__whole_public_file__every_published_figure_is_met(name):
    requests, span_s, rate, peak, cv, fano, inputs, outputs, hit_ratio = WHOLE_FILES[name]

    stats = describe(shared_trace(name))

    # Half of the last digit that is published.
    assert stats.requests == requests
    assert stats.arrivals.span_s == pytest.approx(span_s, abs=0.5)
    assert stats.arrivals.mean_rate_per_s == pytest.approx(rate, abs={10.3: 0.05, 0.016: 0.0005}.get(rate, 0.005))
    assert stats.arrivals.peak_to_mean == pytest.approx(peak, abs=0.05)
    assert stats.arrivals.cv == pytest.approx(cv, abs=0.05 if name.startswith("exgentic") else 0.005)
    assert stats.arrivals.fano == (None if fano is None else pytest.approx(fano, abs=0.05))
    for measured, published in ((stats.input_tokens, inputs), (stats.output_tokens, outputs)):
        figures = (measured.min, measured.mean, measured.p50, measured.p99, measured.max)
        assert figures == pytest.approx(published, abs=0.51)
    assert stats.prefix_hit_ratio == (None if hit_ratio is None else pytest.approx(hit_ratio, abs=0.0005))


@pytest.mark.shared
def test_describe__mooncake_conversation_to_2400_s__published_cold_start_hit_ratio():
    trace = shared_trace("mooncake_conversation")

    stats = describe(trace)

    assert trace.block_tokens == 512
    assert stats.prefix_hit_ratio == pytest.approx(0.358, abs=0.0005)
    assert all(r.prefix_block_hashes[0] == 0 for r in trace.records)
    assert all(len(r.prefix_block_hashes) == -(-r.input_tokens // 512) for r in trace.records)


@pytest.mark.shared
def test_read_trace__mooncake_conversation_with_tick_jitter__ticks_keep_their_requests_and_bursts_vanish():
    plain = shared_trace("mooncake_conversation")
    spread = shared_trace("mooncake_conversation", jitter="tick", seed=1)

    ticks = sorted({r.arrival_s for r in plain.records})
    assert len(ticks) == 800  # 3 s apart, give or take a millisecond
    assert [r.arrival_s for r in plain.records] == [ticks[bisect_right(ticks, r.arrival_s) - 1] for r in spread.records]
    assert [r.input_tokens for r in plain.records] == [r.input_tokens for r in spread.records]
    assert describe(plain).arrivals.cv > 2.9
    assert describe(spread).arrivals.cv == pytest.approx(1.0, abs=0.1)


@pytest.mark.shared
@pytest.mark.parametrize("name", ["sharegpt_8k_lengths", "arxiv_summarization_lengths"])
def test_describe__lengths_without_times__has_no_arrival_figures(name):
    stats = describe(shared_trace(name))

    assert stats.arrivals is None
    assert stats.requests > 20_000


@pytest.mark.shared
def test_describe_models__servegen__five_models_that_add_up():
    trace = shared_trace("servegen_multimodel_day0")

    per_model = describe_models(trace)

    assert len(per_model) == 5
    assert sum(stats.requests for stats in per_model.values()) == len(trace.records)


@pytest.mark.shared
def test_iter_trace__large_file__streams_the_same_records():
    trace = shared_trace("azure_2023_conv")

    assert tuple(iter_trace(SHARED / "azure_2023_conv.parquet")) == trace.records


def test_prefix_hit_ratio__models__share_nothing():
    def request(model):
        return TraceRecord(arrival_s=0.0, input_tokens=32, output_tokens=1, model=model, prefix_block_hashes=(1, 2))

    assert prefix_hit_ratio([request("a"), request("b")], 16) == 0.0
    assert prefix_hit_ratio([request("a"), request("a")], 16) == 0.5


def test_prefix_hit_ratio__hit_after_a_miss__does_not_count():
    first = TraceRecord(arrival_s=0.0, input_tokens=32, output_tokens=1, prefix_block_hashes=(1, 2))
    second = TraceRecord(arrival_s=1.0, input_tokens=32, output_tokens=1, prefix_block_hashes=(9, 2))

    assert prefix_hit_ratio([first, second], 16) == 0.0


def test_describe__all_at_once__no_rate_instead_of_a_division_by_zero():
    records = tuple(TraceRecord(arrival_s=0.0, input_tokens=1, output_tokens=1) for _ in range(3))

    arrivals = describe(Trace(name="t", records=records)).arrivals

    assert (arrivals.mean_rate_per_s, arrivals.cv, arrivals.fano) == (None, None, None)


def test_describe__no_request__is_refused():
    with pytest.raises(BadParameter, match="at least one request"):
        describe(Trace(name="t", records=()))


def test_describe__one_time_is_millennia_off__takes_no_memory_by_the_minute():
    times_s = [float(minute * 60 + second) for minute in range(10) for second in range(0, 60, 1 + minute)]
    records = [TraceRecord(arrival_s=t, input_tokens=1, output_tokens=1) for t in (*times_s, 2.5e11)]

    arrivals = describe(Trace(name="t", records=tuple(records))).arrivals

    counts = [len(range(0, 60, 1 + minute)) for minute in range(10)]
    mean = sum(counts) / (2.5e11 // 60)
    assert arrivals.fano == pytest.approx(sum(c * c for c in counts) / sum(counts) - mean, rel=1e-6)
    assert arrivals.peak_to_mean == pytest.approx(1.0 / arrivals.mean_rate_per_s)
