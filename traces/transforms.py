"""One trace made into another. Every function is pure; what is random has a seed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise

import numpy as np

from traces.errors import BadParameter
from traces.record import TraceRecord
from traces.trace import Trace


def first(trace: Trace, count: int) -> Trace:
    """The first `count` requests (all of them, if there are fewer)."""
    if count < 1:
        raise BadParameter(name="count", value=count, remedy="give at least 1")
    return replace(trace, records=trace.records[:count])


def window(trace: Trace, start_s: float, end_s: float) -> Trace:
    """The requests that arrive in [start_s, end_s); their times count from `start_s`."""
    _require_arrivals(trace)
    if not start_s < end_s:
        raise BadParameter(name="end_s", value=end_s, remedy=f"give a time after the start ({start_s} s)")
    return replace(
        trace,
        records=tuple(
            replace(r, arrival_s=r.arrival_s - start_s) for r in trace.records if start_s <= r.arrival_s < end_s
        ),
    )


def with_arrivals(trace: Trace, arrivals_s: Sequence[float]) -> Trace:
    """Gives request i the arrival time i; the times must ascend. Surplus times are left unused."""
    if len(arrivals_s) < len(trace.records):
        raise BadParameter(
            name="arrivals_s",
            value=len(arrivals_s),
            remedy=f"give one time for each of the {len(trace.records)} requests",
        )
    if any(later < earlier for earlier, later in pairwise(arrivals_s)):
        raise BadParameter(name="arrivals_s", value="<not ascending>", remedy="sort the times")
    return replace(
        trace,
        records=tuple(replace(r, arrival_s=float(t)) for r, t in zip(trace.records, arrivals_s, strict=False)),
        has_arrivals=True,
    )


def scale_times(trace: Trace, factor: float) -> Trace:
    """Multiplies every arrival time: 2 halves the request rate."""
    _require_arrivals(trace)
    _require_positive("factor", factor)
    return replace(trace, records=tuple(replace(r, arrival_s=r.arrival_s * factor) for r in trace.records))


def at_rate(trace: Trace, rate_per_s: float) -> Trace:
    """Scales the times so that the mean rate (requests by span) becomes `rate_per_s`."""
    _require_arrivals(trace)
    _require_positive("rate_per_s", rate_per_s)
    if trace.span_s <= 0:
        raise BadParameter(
            name="trace",
            value=trace.name,
            remedy="its requests arrive all at once, so it has no rate to scale; spread them first",
        )
    return scale_times(trace, len(trace.records) / trace.span_s / rate_per_s)


def scale_length(tokens: int, factor: float, minimum: int, maximum: int | None) -> int:
    """Scales a length, rounds half up, and clamps it.

    >>> [scale_length(n, 0.1, 2, 50) for n in (4, 25, 250, 5000)]
    [2, 3, 25, 50]
    """
    scaled = max(minimum, math.floor(tokens * factor + 0.5))
    return scaled if maximum is None else min(scaled, maximum)


def scale_lengths(
    trace: Trace,
    *,
    input_factor: float = 1.0,
    output_factor: float = 1.0,
    min_tokens: int = 1,
    max_input_tokens: int | None = None,
    max_output_tokens: int | None = None,
) -> Trace:
    """Scales prompts and outputs, each then clamped to [min_tokens, max].

    Prefix blocks shrink with the prompts, so that requests share the same part of their prompts as before; ids of
    blocks that a clamped prompt no longer reaches are dropped.
    """
    _require_positive("input_factor", input_factor)
    _require_positive("output_factor", output_factor)
    _require_positive("min_tokens", min_tokens)
    for name, maximum in (("max_input_tokens", max_input_tokens), ("max_output_tokens", max_output_tokens)):
        if maximum is not None and maximum < min_tokens:
            raise BadParameter(name=name, value=maximum, remedy=f"give at least min_tokens ({min_tokens})")
    block_tokens = None if trace.block_tokens is None else scale_length(trace.block_tokens, input_factor, 1, None)

    def scaled(record: TraceRecord) -> TraceRecord:
        input_tokens = scale_length(record.input_tokens, input_factor, min_tokens, max_input_tokens)
        hashes = record.prefix_block_hashes
        return replace(
            record,
            input_tokens=input_tokens,
            output_tokens=scale_length(record.output_tokens, output_factor, min_tokens, max_output_tokens),
            prefix_block_hashes=hashes[: -(-input_tokens // block_tokens)] if block_tokens is not None else hashes,
        )

    return replace(trace, records=tuple(scaled(r) for r in trace.records), block_tokens=block_tokens)


def assign_models(trace: Trace, weights: Mapping[str, float], *, seed: int, overwrite: bool = False) -> Trace:
    """Draws a model for every request that has none (`overwrite`: for every request), by weight.

    Requests of one session get the same model.
    """
    total = sum(weights.values())
    if not weights or any(w < 0 or not math.isfinite(w) for w in weights.values()) or total <= 0:
        raise BadParameter(
            name="weights", value=dict(weights), remedy="give each model a weight >= 0, not all of them 0"
        )
    models = list(weights)
    draws = np.random.default_rng(seed).choice(
        len(models), size=len(trace.records), p=[w / total for w in weights.values()]
    )
    of_session: dict[str, str] = {}
    records = []
    for record, draw in zip(trace.records, draws, strict=True):
        if record.model is None or overwrite:
            model = models[int(draw)]
            if record.session_id is not None:
                model = of_session.setdefault(record.session_id, model)
            record = replace(record, model=model)
        records.append(record)
    return replace(trace, records=tuple(records))


def spread_ticks(trace: Trace, *, seed: int) -> Trace:
    """Spreads requests with equal times uniformly over their tick, the smallest step between two times of the trace.

    The order of the requests stays, and nobody leaves the tick. A trace with a single time stays as it is.
    """
    _require_arrivals(trace)
    ticks = sorted({r.arrival_s for r in trace.records})
    if len(ticks) < 2:
        return trace
    tick_s = min(later - earlier for earlier, later in pairwise(ticks))
    rng = np.random.default_rng(seed)
    records: list[TraceRecord] = []
    for start_s, group in groupby(trace.records, key=lambda r: r.arrival_s):
        members = list(group)
        last_s = math.nextafter(start_s + tick_s, start_s)
        for record, offset_s in zip(members, np.sort(rng.random(len(members))) * tick_s, strict=True):
            records.append(replace(record, arrival_s=min(start_s + float(offset_s), last_s)))
    return replace(trace, records=tuple(records))


def _require_arrivals(trace: Trace) -> None:
    if not trace.has_arrivals:
        raise BadParameter(
            name="trace",
            value=trace.name,
            remedy="it has lengths but no arrival times; give it some with with_arrivals",
        )


def _require_positive(name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise BadParameter(name=name, value=value, remedy="give a finite number above 0")
