import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.errors import BadParameter
from traces.machine_fit import MachineLimits, scale_to
from traces.record import TraceRecord
from traces.stats import prefix_hit_ratio
from traces.trace import Trace
from traces.transforms import (
    assign_models,
    at_rate,
    first,
    scale_lengths,
    scale_times,
    spread_ticks,
    window,
    with_arrivals,
)


def record(arrival_s=0.0, input_tokens=100, output_tokens=10, **fields):
    return TraceRecord(arrival_s=arrival_s, input_tokens=input_tokens, output_tokens=output_tokens, **fields)


def trace_of(*records, **fields):
    return Trace(name="t", records=tuple(records), **fields)


def test_window__half_open__times_count_from_its_start():
    trace = trace_of(*(record(float(t)) for t in range(10)))

    assert [r.arrival_s for r in window(trace, 3.0, 6.0).records] == [0.0, 1.0, 2.0]


def test_first__more_than_there_are__gives_all():
    assert len(first(trace_of(record(), record()), 5).records) == 2


def test_at_rate__a_rate__mean_rate_is_that_rate():
    trace = at_rate(trace_of(*(record(t * 2.0) for t in range(11))), 5.0)

    assert len(trace.records) / trace.span_s == pytest.approx(5.0)


def test_at_rate__all_at_once__is_refused():
    with pytest.raises(BadParameter, match="all at once"):
        at_rate(trace_of(record(), record()), 1.0)


@pytest.mark.parametrize("factor", [0.0, -1.0, math.nan, math.inf])
def test_scale_times__unusable_factor__is_refused(factor):
    with pytest.raises(BadParameter, match="factor"):
        scale_times(trace_of(record()), factor)


@pytest.mark.parametrize(
    "transform", [lambda t: scale_times(t, 2.0), lambda t: window(t, 0, 1), lambda t: at_rate(t, 1)]
)
def test_time_transforms__lengths_only__say_how_to_get_arrivals(transform):
    with pytest.raises(BadParameter, match="with_arrivals"):
        transform(trace_of(record(), has_arrivals=False))


def test_with_arrivals__lengths_only__becomes_a_trace_with_times():
    trace = with_arrivals(trace_of(record(), record(), has_arrivals=False), [0.5, 1.5, 2.5])

    assert trace.has_arrivals
    assert [r.arrival_s for r in trace.records] == [0.5, 1.5]


@pytest.mark.parametrize("arrivals_s", [[1.0], [2.0, 1.0]])
def test_with_arrivals__too_few_or_unsorted__is_refused(arrivals_s):
    with pytest.raises(BadParameter, match="arrivals_s"):
        with_arrivals(trace_of(record(), record()), arrivals_s)


def test_scale_lengths__factor_and_clamps__each_length_is_scaled_then_clamped():
    trace = trace_of(record(input_tokens=10, output_tokens=2), record(input_tokens=9000, output_tokens=300))

    scaled = scale_lengths(
        trace, input_factor=0.1, output_factor=0.5, min_tokens=4, max_input_tokens=500, max_output_tokens=100
    )

    assert [(r.input_tokens, r.output_tokens) for r in scaled.records] == [(4, 4), (500, 100)]


def test_scale_lengths__prefix_blocks__shrink_so_that_the_hit_ratio_stays():
    trace = trace_of(
        record(input_tokens=1500, prefix_block_hashes=(0, 1, 2)),
        record(input_tokens=1024, prefix_block_hashes=(0, 3)),
        block_tokens=512,
    )

    scaled = scale_lengths(trace, input_factor=0.125)

    assert scaled.block_tokens == 64
    before = prefix_hit_ratio(trace.records, 512)
    assert prefix_hit_ratio(scaled.records, 64) == pytest.approx(before, rel=0.01)


def test_scale_lengths__clamped_prompt__drops_blocks_beyond_its_end():
    trace = trace_of(record(input_tokens=1500, prefix_block_hashes=(0, 1, 2)), block_tokens=512)

    scaled = scale_lengths(trace, max_input_tokens=600)

    assert scaled.records[0].prefix_block_hashes == (0, 1)


def test_scale_lengths__maximum_below_minimum__is_refused():
    with pytest.raises(BadParameter, match="max_input_tokens"):
        scale_lengths(trace_of(record()), min_tokens=5, max_input_tokens=4)


def test_assign_models__weights__shares_follow_them_and_given_models_stay():
    trace = trace_of(record(model="kept"), *(record() for _ in range(4000)))

    assigned = assign_models(trace, {"a": 3.0, "b": 1.0, "never": 0.0}, seed=5)

    models = [r.model for r in assigned.records]
    assert models[0] == "kept"
    assert "never" not in models
    assert models.count("a") / 4000 == pytest.approx(0.75, abs=0.03)


def test_assign_models__same_seed__same_models_and_another_seed_differs():
    trace = trace_of(*(record() for _ in range(100)))
    weights = {"a": 1.0, "b": 1.0}

    assert assign_models(trace, weights, seed=1) == assign_models(trace, weights, seed=1)
    assert assign_models(trace, weights, seed=1) != assign_models(trace, weights, seed=2)


def test_assign_models__one_session__one_model():
    trace = trace_of(*(record(session_id=f"s{i % 5}") for i in range(100)))

    assigned = assign_models(trace, {"a": 1.0, "b": 1.0, "c": 1.0}, seed=1)

    assert len({(r.session_id, r.model) for r in assigned.records}) == 5


def test_assign_models__overwrite__replaces_given_models():
    assigned = assign_models(trace_of(record(model="old")), {"new": 1.0}, seed=0, overwrite=True)

    assert assigned.records[0].model == "new"


@pytest.mark.parametrize("weights", [{}, {"a": 0.0}, {"a": -1.0, "b": 2.0}, {"a": math.nan}])
def test_assign_models__unusable_weights__are_refused(weights):
    with pytest.raises(BadParameter, match="weights"):
        assign_models(trace_of(record()), weights, seed=0)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=60), st.integers(0, 2**32))
def test_spread_ticks__any_ticks__nobody_leaves_a_tick_and_order_stays(ticks, seed):
    trace = trace_of(*(record(3.0 * t, input_tokens=i + 1) for i, t in enumerate(sorted(ticks))))

    spread = spread_ticks(trace, seed=seed)

    assert [r.input_tokens for r in spread.records] == [r.input_tokens for r in trace.records]
    assert [r.arrival_s for r in spread.records] == sorted(r.arrival_s for r in spread.records)
    for before, after in zip(trace.records, spread.records, strict=True):
        assert before.arrival_s <= after.arrival_s < before.arrival_s + 3.0 * 40
        later = [r.arrival_s for r in trace.records if r.arrival_s > before.arrival_s]
        assert not later or after.arrival_s < min(later)


def limits(**changes):
    values = {
        "max_input_tokens": 10**6,
        "max_output_tokens": 10**6,
        "input_tokens_per_s": 1e9,
        "output_tokens_per_s": 1e9,
    }
    return MachineLimits(**{**values, **changes})


def test_scale_to__machine_takes_it_all__nothing_changes():
    trace = trace_of(record(0.0), record(1.0))

    scaled, scale = scale_to(trace, limits())

    assert scaled == trace
    assert (scale.time_factor, scale.input_factor, scale.output_factor, scale.clamped) == (1.0, 1.0, 1.0, 0)


def test_scale_to__slow_machine__times_stretch_to_its_token_rate():
    trace = trace_of(*(record(float(t), output_tokens=50) for t in range(101)))

    scaled, scale = scale_to(trace, limits(output_tokens_per_s=10.0))

    assert scale.time_factor == pytest.approx(5.0)
    assert scaled.span_s == pytest.approx(500.0)


def test_scale_to__long_prompts__99_percent_fit_by_scaling_and_the_rest_is_clamped():
    lengths = [*range(100, 1000), *range(2000, 2009)]
    trace = trace_of(*(record(float(i), input_tokens=n) for i, n in enumerate(lengths)))

    scaled, scale = scale_to(trace, limits(max_input_tokens=100))

    assert scale.clamped == 9
    assert max(r.input_tokens for r in scaled.records) == 100
    assert sum(r.input_tokens == 100 for r in scaled.records) < 20
    assert "9 of 909" in str(scale)


def test_scale_to__bounded_duration__lengths_shrink_instead():
    trace = trace_of(*(record(float(t), input_tokens=2000, output_tokens=500) for t in range(101)))

    scaled, scale = scale_to(trace, limits(output_tokens_per_s=100.0, max_duration_s=50.0))

    assert scaled.span_s == pytest.approx(50.0)
    assert scale.output_factor == pytest.approx(0.1)
    rate = sum(r.output_tokens for r in scaled.records[:-1]) / scaled.span_s
    assert rate <= 100.0 * 1.01


def test_scale_to__one_request__only_lengths_are_scaled():
    scaled, scale = scale_to(trace_of(record(input_tokens=1000)), limits(max_input_tokens=10, input_tokens_per_s=1.0))

    assert scaled.records[0].input_tokens == 10
    assert scale.time_factor == 1.0


@pytest.mark.parametrize("field", ["max_input_tokens", "output_tokens_per_s", "max_duration_s"])
def test_scale_to__limit_of_zero__is_refused(field):
    with pytest.raises(BadParameter, match=field):
        scale_to(trace_of(record()), limits(**{field: 0}))
