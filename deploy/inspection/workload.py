"""Fits a trace to the models that an endpoint serves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from deploy.inspection.served_models import ServedModel
from traces.errors import BadParameter
from traces.record import TraceRecord
from traces.synthetic import poisson_arrivals
from traces.trace import Trace
from traces.transforms import assign_models, at_rate, scale_lengths, scale_times, with_arrivals


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """`notes` say, in words, how it differs from the file."""

    trace: Trace
    notes: tuple[str, ...]


def fit_rate(trace: Trace, *, rate_per_s: float | None, rate_scale: float, seed: int) -> Workload:
    """Raises BadParameter: the trace has no times and no rate is given."""
    notes: list[str] = []
    if not trace.has_arrivals:
        if rate_per_s is None:
            raise BadParameter(name="rate", value=None, remedy="the trace has no arrival times; give --rate")
        trace = with_arrivals(trace, poisson_arrivals(rate_per_s, len(trace.records), seed=seed))
        notes.append(f"Poisson arrivals at {rate_per_s:g} requests/s (the trace has no times)")
    elif rate_per_s is not None:
        trace = at_rate(trace, rate_per_s)
        notes.append(f"times scaled to {rate_per_s:g} requests/s")
    if rate_scale != 1.0:
        if not 0 < rate_scale < float("inf"):
            raise BadParameter(name="rate-scale", value=rate_scale, remedy="give a finite number above 0")
        trace = scale_times(trace, 1.0 / rate_scale)
        notes.append(f"rate x{rate_scale:g}")
    return Workload(trace=trace, notes=tuple(notes))


def fit_models(trace: Trace, models: Sequence[ServedModel], *, only: str | None, seed: int) -> Workload:
    """Names of the trace that are served stay; without any, every request gets a served model, drawn evenly.

    Raises:
        BadParameter: `only` is not served.
    """
    served = {m.id for m in models}
    if only is not None:
        if only not in served:
            raise BadParameter(name="model", value=only, remedy=f"served there: {', '.join(sorted(served))}")
        return Workload(trace=assign_models(trace, {only: 1.0}, seed=seed, overwrite=True), notes=())
    named = {r.model for r in trace.records if r.model is not None}
    weights: Mapping[str, float] = dict.fromkeys(sorted(served), 1.0)
    if named <= served:
        trace = assign_models(trace, weights, seed=seed)
        return Workload(trace=trace, notes=() if named else ("models drawn evenly",))
    trace = assign_models(trace, weights, seed=seed, overwrite=True)
    return Workload(trace=trace, notes=("models drawn evenly (the trace names others)",))


def cut_to_context(record: TraceRecord, max_model_len: int) -> TraceRecord:
    """The output cut to a half of the context and the prompt to the rest; itself if it fits."""
    if record.input_tokens + max(1, record.output_tokens) <= max_model_len:
        return record
    output_tokens = min(record.output_tokens, max_model_len // 2)
    input_tokens = min(record.input_tokens, max_model_len - max(1, output_tokens))
    return replace(record, input_tokens=input_tokens, output_tokens=output_tokens)


def fit_lengths(trace: Trace, models: Sequence[ServedModel], *, length_scale: float) -> Workload:
    """Scales lengths, then cuts what exceeds a model's context: outputs to a half of it, prompts to the rest."""
    notes: list[str] = []
    if length_scale != 1.0:
        trace = scale_lengths(trace, input_factor=length_scale, output_factor=length_scale)
        notes.append(f"lengths x{length_scale:g}")
    limits = {m.id: m.max_model_len for m in models}
    records = []
    cut = 0
    for record in trace.records:
        limit = limits.get(record.model or "")
        fitting = record if limit is None else cut_to_context(record, limit)
        cut += fitting is not record
        records.append(fitting)
    if cut:
        notes.append(f"{cut} of {len(records)} requests cut to their model's context")
    return Workload(trace=replace(trace, records=tuple(records)), notes=tuple(notes))
