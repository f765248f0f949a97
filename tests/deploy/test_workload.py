import pytest

from deploy.inspection.served_models import ServedModel
from deploy.inspection.workload import fit_lengths, fit_models, fit_rate
from traces.errors import BadParameter
from traces.record import TraceRecord
from traces.trace import Trace


def served(*ids: str, max_model_len: int | None = 100) -> tuple[ServedModel, ...]:
    return tuple(ServedModel(id=i, status="ready", max_model_len=max_model_len, slo=None) for i in ids)


def trace_of(*models: str | None, input_tokens: int = 10, output_tokens: int = 5, has_arrivals: bool = True) -> Trace:
    return Trace(
        name="t",
        records=tuple(
            TraceRecord(
                arrival_s=float(i) if has_arrivals else 0.0,
                input_tokens=input_tokens,
                output_tokens=output_tokens,
                model=model,
            )
            for i, model in enumerate(models)
        ),
        has_arrivals=has_arrivals,
    )


def test_fit_models__names_are_served__stay() -> None:
    workload = fit_models(trace_of("a", "b", "a"), served("a", "b", "c"), only=None, seed=0)

    assert [r.model for r in workload.trace.records] == ["a", "b", "a"]
    assert workload.notes == ()


@pytest.mark.parametrize("models", [(None,) * 40, ("gpt",) * 40], ids=["none named", "others named"])
def test_fit_models__names_not_served__are_drawn_from_those_that_are(models: tuple[str | None, ...]) -> None:
    workload = fit_models(trace_of(*models), served("a", "b"), only=None, seed=0)

    assert {r.model for r in workload.trace.records} == {"a", "b"}
    assert len(workload.notes) == 1


def test_fit_models__one_asked_for__takes_everything() -> None:
    workload = fit_models(trace_of("a", "b"), served("a", "b"), only="b", seed=0)

    assert [r.model for r in workload.trace.records] == ["b", "b"]


def test_fit_models__one_asked_for_is_not_served__is_refused() -> None:
    with pytest.raises(BadParameter, match="served there: a, b"):
        fit_models(trace_of("a"), served("a", "b"), only="c", seed=0)


def test_fit_lengths__request_beyond_the_context__is_cut_to_it() -> None:
    workload = fit_lengths(trace_of("a", input_tokens=400, output_tokens=80), served("a"), length_scale=1.0)

    (record,) = workload.trace.records
    assert (record.input_tokens, record.output_tokens) == (50, 50)
    assert workload.notes == ("1 of 1 requests cut to their model's context",)


def test_fit_lengths__scaled_into_the_context__is_not_cut() -> None:
    workload = fit_lengths(trace_of("a", input_tokens=400, output_tokens=80), served("a"), length_scale=0.1)

    (record,) = workload.trace.records
    assert (record.input_tokens, record.output_tokens) == (40, 8)
    assert workload.notes == ("lengths x0.1",)


def test_fit_lengths__context_unknown__leaves_lengths() -> None:
    workload = fit_lengths(trace_of("a", input_tokens=400), served("a", max_model_len=None), length_scale=1.0)

    assert workload.trace.records[0].input_tokens == 400


def test_fit_rate__rate_and_scale__give_the_product() -> None:
    workload = fit_rate(trace_of("a", "a", "a", "a"), rate_per_s=2.0, rate_scale=2.0, seed=0)

    assert workload.trace.span_s == pytest.approx(1.0)


def test_fit_rate__no_times__needs_a_rate() -> None:
    with pytest.raises(BadParameter, match="give --rate"):
        fit_rate(trace_of("a", has_arrivals=False), rate_per_s=None, rate_scale=1.0, seed=0)

    workload = fit_rate(trace_of("a", "a", has_arrivals=False), rate_per_s=5.0, rate_scale=1.0, seed=0)
    assert workload.trace.has_arrivals


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan")])
def test_fit_rate__useless_scale__is_refused(scale: float) -> None:
    with pytest.raises(BadParameter):
        fit_rate(trace_of("a", "a"), rate_per_s=None, rate_scale=scale, seed=0)
