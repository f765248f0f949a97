"""Numbers that describe a trace."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from traces.errors import BadParameter
from traces.record import TraceRecord
from traces.trace import Trace

BIN_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthStats:
    min: int
    mean: float
    p50: float
    p99: float
    max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalStats:
    """`peak_to_mean`: highest rate in a whole minute by the mean rate. `cv`: coefficient of variation of gaps.

    `fano`: variance by mean of the counts per whole minute; 1 for Poisson. None where too few requests or minutes.
    """

    span_s: float
    mean_rate_per_s: float | None
    peak_to_mean: float | None
    cv: float | None
    fano: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStats:
    """`arrivals` is None for sets of lengths, `prefix_hit_ratio` where no request names its prefix blocks."""

    requests: int
    arrivals: ArrivalStats | None
    input_tokens: LengthStats
    output_tokens: LengthStats
    prefix_hit_ratio: float | None


def describe(trace: Trace) -> TraceStats:
    """Raises BadParameter for a trace without requests."""
    if not trace.records:
        raise BadParameter(name="trace", value=trace.name, remedy="give a trace with at least one request")
    return TraceStats(
        requests=len(trace.records),
        arrivals=_arrivals([r.arrival_s for r in trace.records]) if trace.has_arrivals else None,
        input_tokens=_lengths([r.input_tokens for r in trace.records]),
        output_tokens=_lengths([r.output_tokens for r in trace.records]),
        prefix_hit_ratio=_trace_hit_ratio(trace),
    )


def describe_models(trace: Trace) -> dict[str, TraceStats]:
    """The same per model, by name; requests without a model are left out."""
    groups: dict[str, list[TraceRecord]] = {}
    for record in trace.records:
        if record.model is not None:
            groups.setdefault(record.model, []).append(record)
    return {model: describe(replace(trace, records=tuple(groups[model]))) for model in sorted(groups)}


def prefix_hit_ratio(records: Sequence[TraceRecord], block_tokens: int) -> float:
    """Share of prompt tokens that a cache of infinite size holds already; blocks enter it when their request arrives.

    Models share nothing. A request reuses the leading blocks it shares with earlier ones; its last, partial block
    counts as the tokens it holds.

    >>> request = TraceRecord(arrival_s=0.0, input_tokens=20, output_tokens=1, prefix_block_hashes=(7, 8))
    >>> prefix_hit_ratio([request, request], block_tokens=16)
    0.5
    """
    seen: set[tuple[str | None, int]] = set()
    reused_tokens = 0
    for record in records:
        hits = 0
        for block in record.prefix_block_hashes:
            if (record.model, block) not in seen:
                break
            hits += 1
        reused_tokens += min(hits * block_tokens, record.input_tokens)
        seen.update((record.model, block) for block in record.prefix_block_hashes)
    return reused_tokens / sum(r.input_tokens for r in records)


def _trace_hit_ratio(trace: Trace) -> float | None:
    if trace.block_tokens is None or not any(r.prefix_block_hashes for r in trace.records):
        return None
    return prefix_hit_ratio(trace.records, trace.block_tokens)


def _lengths(values: Sequence[int]) -> LengthStats:
    array = np.asarray(values)
    p50, p99 = np.percentile(array, [50, 99])
    return LengthStats(
        min=int(array.min()), mean=float(array.mean()), p50=float(p50), p99=float(p99), max=int(array.max())
    )


def _arrivals(times_s: Sequence[float]) -> ArrivalStats:
    times = np.asarray(times_s) - times_s[0]
    span_s = float(times[-1])
    if span_s <= 0:
        return ArrivalStats(span_s=0.0, mean_rate_per_s=None, peak_to_mean=None, cv=None, fano=None)
    rate_per_s = len(times) / span_s
    gaps_s = np.diff(times)
    bins = int(span_s // BIN_S)
    if bins == 0:  # shorter than a minute: the span itself is the only bin
        peak_to_mean, fano = 1.0, None
    else:
        bin_of = times // BIN_S
        _, counts = np.unique(bin_of[bin_of < bins], return_counts=True)  # one stray time makes billions of empty ones
        peak_to_mean = float(counts.max()) / BIN_S / rate_per_s
        mean = float(counts.sum()) / bins
        fano = (float((counts**2).sum()) / mean - counts.sum()) / (bins - 1) if bins > 1 else None
    cv = float(gaps_s.std(ddof=1) / gaps_s.mean()) if len(gaps_s) > 1 else None
    return ArrivalStats(span_s=span_s, mean_rate_per_s=rate_per_s, peak_to_mean=peak_to_mean, cv=cv, fano=fano)
