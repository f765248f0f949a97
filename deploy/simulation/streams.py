"""Requests of a simulated fleet, one at a time: a trace file is read as the simulation goes."""

import heapq
import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from placement.demand import ModelDemand
from traces.errors import BadParameter
from traces.readers.registry import recognise
from traces.record import TraceRecord

_DRAWS = 4096  # random numbers drawn at a time
# Of generated lengths: the spread of Azure's conversation prompts (p99 / p50 = 4.1).
_LENGTH_SIGMA = 0.6
_EVEN = 1e-3  # variation of gaps that nobody can tell from none
_LONGEST_GAP_S = 366 * 24 * 3600.0  # a fleet that idles is simulated second by second, too


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStream:
    """`records` starts from the beginning at every call; every record names its model, and times ascend from 0.

    `count` and `span_s` are known beforehand, for progress and for rates. `unknown_models` are those that a trace names
    and the fleet has not.
    """

    name: str
    records: Callable[[], Iterator[TraceRecord]]
    block_tokens: int | None
    count: int
    span_s: float
    unknown_models: tuple[str, ...] = ()

    @property
    def rate_per_s(self) -> float:
        return self.count / self.span_s if self.span_s > 0 else float(self.count)

    def at_rate(self, rate_per_s: float) -> "RequestStream":
        """The same requests with their times scaled. Raises BadParameter for a rate that is not above 0."""
        if not 0 < rate_per_s < float("inf"):
            raise BadParameter(name="rate", value=rate_per_s, remedy="give a finite number above 0")
        if self.span_s <= 0:
            remedy = "its requests arrive all at once, so it has no rate to scale"
            raise BadParameter(name="trace", value=self.name, remedy=remedy)
        factor = self.rate_per_s / rate_per_s
        records = self.records

        def scaled() -> Iterator[TraceRecord]:
            return (r.at(r.arrival_s * factor, r.model) for r in records())

        return replace(self, records=scaled, span_s=self.span_s * factor)

    def first(self, count: int | None, duration_s: float | None) -> "RequestStream":
        """The first `count` requests, and of those the ones that arrive within `duration_s`."""
        if duration_s is None:
            if count is None or count >= self.count:
                return self
            first = _measured(self.name, lambda: itertools.islice(self.records(), count), self.block_tokens)
            return replace(first, unknown_models=self.unknown_models)
        limit_s = duration_s

        def within() -> Iterator[TraceRecord]:
            return itertools.takewhile(lambda r: r.arrival_s < limit_s, itertools.islice(self.records(), count))

        return replace(_measured(self.name, within, self.block_tokens), unknown_models=self.unknown_models)


def trace_stream(
    path: Path,
    weights: Mapping[str, float],
    *,
    seed: int,
    spread_ticks: bool,
    rate_per_s: float | None = None,
    untimed_per_s: float | None = None,
    bases: Mapping[str, str] | None = None,
) -> RequestStream:
    """A trace file. Requests for a model of `bases` (an adapter) are its base's; those of other models that are not in
    `weights` get one of them, drawn by weight, per session.

    A trace without times gets Poisson arrivals at `rate_per_s`, or else `untimed_per_s`; of one that has times the mean
    rate becomes `rate_per_s`.

    Raises:
        TraceUnreadable, BadTraceFile: the file is not usable.
        BadParameter: its times do not ascend or leave years without a request, or it has none and no rate is given.
    """
    reader = recognise(path)
    facts = reader.read_facts(path)
    has_arrivals, name = facts.has_arrivals, facts.metadata.get("name", path.stem)
    if not has_arrivals and (rate_per_s := rate_per_s or untimed_per_s) is None:
        raise BadParameter(name="rate", value=None, remedy="the trace has no arrival times; give --rate")
    bases_of = bases or {}
    unknown: set[str] = set()

    def noted(rows: Iterable[TraceRecord]) -> Iterator[TraceRecord]:
        for row in rows:
            if row.model is not None and row.model not in weights and row.model not in bases_of:
                unknown.add(row.model)
            yield row

    survey = _survey(name, path.name, noted(reader.iter_records(path, facts)), seed) if has_arrivals else None

    def records() -> Iterator[TraceRecord]:
        raw = reader.iter_records(path, facts)
        if survey is None:
            assert rate_per_s is not None
            raw = _with_times(noted(raw), rate_per_s, seed)
        elif spread_ticks:
            raw = _spread(raw, survey.tick_s, seed)
        return _from_zero(_with_models(raw, weights, seed, bases_of))

    if survey is None:
        measured = _measured(name, records, facts.block_tokens)
        return replace(measured, unknown_models=tuple(sorted(unknown)))
    span_s = survey.span_s(spread_ticks=spread_ticks)
    stream = RequestStream(
        name=name,
        records=records,
        block_tokens=facts.block_tokens,
        count=survey.count,
        span_s=span_s,
        unknown_models=tuple(sorted(unknown)),
    )
    paced = stream if rate_per_s is None else stream.at_rate(rate_per_s)
    survey.check_gap(path.name, paced.span_s / span_s if span_s > 0 else 1.0)
    return paced


def demand_stream(demands: Sequence[ModelDemand], *, duration_s: float, seed: int) -> RequestStream:
    """Arrivals of every model at its expected rate and variation, log-normal lengths with its expected means."""

    def of_model(rank: int, demand: ModelDemand) -> Iterator[TraceRecord]:
        rng = np.random.default_rng([seed, rank])
        time_s = 0.0
        for gaps in _gaps(rng, demand.rate_per_s, demand.arrival_cv):
            spread = rng.lognormal(-(_LENGTH_SIGMA**2) / 2, _LENGTH_SIGMA, (_DRAWS, 2))
            for gap_s, (of_prompt, of_output) in zip(gaps, spread, strict=True):
                time_s += float(gap_s)
                if time_s >= duration_s:
                    return
                yield TraceRecord(
                    arrival_s=time_s,
                    input_tokens=max(1, round(demand.prompt_tokens * of_prompt)),
                    output_tokens=max(1, round(demand.output_tokens * of_output)),
                    model=demand.model,
                )

    asked = [d for d in demands if d.rate_per_s > 0]

    def records() -> Iterator[TraceRecord]:
        of_models = [of_model(rank, demand) for rank, demand in enumerate(asked)]
        return heapq.merge(*of_models, key=lambda record: record.arrival_s)

    return _measured("demand of the fleet file", records, None)


def _gaps(rng: np.random.Generator, rate_per_s: float, cv: float) -> Iterator[npt.NDArray[np.float64]]:
    """Seconds between arrivals, drawn many at a time: a renewal process with Gamma gaps of coefficient of variation
    `cv`, 1 is Poisson. It is looked at from any moment on: the first gap is what is left of one. Begun with an arrival
    it would bring (cv^2 - 1) / 2 more than its rate says, at once.
    """
    if cv < _EVEN:
        first, more = rng.random() / rate_per_s, np.full(_DRAWS, 1.0 / rate_per_s)
        yield np.append(first, more[1:])
        while True:
            yield more
    shape = 1.0 / cv**2
    scale_s = 1.0 / (rate_per_s * shape)
    gaps = rng.gamma(shape, scale_s, _DRAWS)
    if cv != 1:  # what is left of an exponential gap is one
        gaps[0] = rng.random() * rng.gamma(shape + 1.0, scale_s)
    while True:
        yield gaps
        gaps = rng.gamma(shape, scale_s, _DRAWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Survey:
    """Holds what one look at all rows says. `first_draw` and `last_draw` are where in their ticks `_spread` puts the
    first and the last of them.
    """

    count: int
    tick_s: float
    first_s: float
    last_s: float
    first_draw: float
    last_draw: float
    gap_s: float
    gap_row: int

    def check_gap(self, file: str, factor: float) -> None:
        """`factor` is what times are multiplied with. Raises BadParameter: nothing arrives for too long."""
        if self.gap_s * factor > _LONGEST_GAP_S:
            raise BadParameter(
                name="trace",
                value=file,
                remedy=f"row {self.gap_row} arrives {self.gap_s * factor:.4g} s after the row above it, and at most "
                f"{_LONGEST_GAP_S:.4g} s go without a request; correct its arrival time, or cut the file there",
            )

    def span_s(self, *, spread_ticks: bool) -> float:
        if not spread_ticks:
            return self.last_s - self.first_s
        return (self.last_s + self.last_draw * self.tick_s) - (self.first_s + self.first_draw * self.tick_s)


def _survey(name: str, file: str, rows: Iterable[TraceRecord], seed: int) -> _Survey:
    """Reads every row, so that what is wrong with one is said before anything runs."""
    count, tick_s = 0, float("inf")
    first_s, last_s, first_draw, last_draw = float("-inf"), float("-inf"), 1.0, 0.0
    gap_s, gap_row = 0.0, 1
    for record, draw in zip(rows, _uniforms(seed), strict=False):
        count += 1
        arrival_s = record.arrival_s
        if arrival_s > last_s:
            if count > 1:
                since_s = arrival_s - last_s
                tick_s = min(tick_s, since_s)
                if since_s > gap_s:
                    gap_s, gap_row = since_s, count
            else:
                first_s = arrival_s
            last_s, last_draw = arrival_s, draw
        elif arrival_s < last_s:
            remedy = f"row {count} arrives before the row above it; sort the file by arrival_s"
            raise BadParameter(name="trace", value=file, remedy=remedy)
        elif draw > last_draw:
            last_draw = draw
        if arrival_s == first_s and draw < first_draw:
            first_draw = draw
    if count == 0:
        raise _empty(name)
    return _Survey(
        count=count,
        tick_s=0.0 if tick_s == float("inf") else tick_s,
        first_s=first_s,
        last_s=last_s,
        first_draw=first_draw,
        last_draw=last_draw,
        gap_s=gap_s,
        gap_row=gap_row,
    )


def _empty(name: str) -> BadParameter:
    return BadParameter(name="trace", value=name, remedy="it holds no request in the asked-for part")


def _measured(name: str, records: Callable[[], Iterator[TraceRecord]], block_tokens: int | None) -> RequestStream:
    count, last_s = 0, 0.0
    for record in records():
        count, last_s = count + 1, record.arrival_s
    if count == 0:
        raise _empty(name)
    return RequestStream(name=name, records=records, block_tokens=block_tokens, count=count, span_s=last_s)


def _from_zero(records: Iterable[TraceRecord]) -> Iterator[TraceRecord]:
    start_s: float | None = None
    for record in records:
        start_s = record.arrival_s if start_s is None else start_s
        yield record.at(record.arrival_s - start_s, record.model) if start_s else record


def _with_times(records: Iterable[TraceRecord], rate_per_s: float, seed: int) -> Iterator[TraceRecord]:
    time_s = 0.0
    for record, gap in zip(records, _uniforms(seed), strict=False):
        time_s += float(-np.log1p(-gap)) / rate_per_s
        yield record.at(time_s, record.model)


def _spread(records: Iterable[TraceRecord], tick_s: float, seed: int) -> Iterator[TraceRecord]:
    """Requests of one time, uniformly over their tick, in the same order."""
    draws = _uniforms(seed)
    for start_s, group in itertools.groupby(records, key=lambda record: record.arrival_s):
        members = list(group)
        offsets = sorted(itertools.islice(draws, len(members)))
        for record, offset in zip(members, offsets, strict=True):
            yield record.at(start_s + offset * tick_s, record.model)


def _with_models(
    records: Iterable[TraceRecord], weights: Mapping[str, float], seed: int, bases: Mapping[str, str]
) -> Iterator[TraceRecord]:
    models = list(weights)
    total = sum(weights.values())
    bounds = np.cumsum([weights[m] / total if total > 0 else 1 / len(models) for m in models]).tolist()
    of_session: dict[str, str] = {}
    for record, draw in zip(records, _uniforms(seed + 1), strict=False):
        if record.model in weights:
            yield record
            continue
        if record.model is not None and record.model in bases:
            yield record.at(record.arrival_s, bases[record.model])
            continue
        model = models[min(len(models) - 1, bisect_right(bounds, draw))]
        if record.session_id is not None:
            model = of_session.setdefault(record.session_id, model)
        yield record.at(record.arrival_s, model)


def _uniforms(seed: int) -> Iterator[float]:
    rng = np.random.default_rng(seed)
    while True:
        yield from rng.random(_DRAWS).tolist()
