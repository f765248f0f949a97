"""The fleet file's `pools[].scaling.forecast`, and the trace that it names."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from deploy.errors import FleetFileError
from deploy.fleet_file.model_section import ModelSection
from deploy.fleet_file.section import Section
from deploy.fleet_file.setting_types import TimeOfDay
from placement.scaling.seasonal_forecast import Season, season_of_arrivals
from traces.errors import TraceError

_ANY = ""  # stands for the model of requests that name none of the fleet's


class ForecastSection(Section):
    """Says how demand repeats: what came at the same time of earlier seasons is made room for before it comes."""

    season_s: Annotated[float, Field(ge=240, le=31 * 86400)] = 86400.0
    """After so long demand repeats. A week, which begins on Monday, is 604800."""
    trace: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """File (relative to this file) of the requests of a season, so that the first one is foreseen, too; it must be
    there where the control loop runs. Default: learned from what comes."""
    trace_start: TimeOfDay = "00:00"
    """When on a Monday (UTC) the first request of the trace came."""


def season_of(forecast: ForecastSection, models: Sequence[ModelSection], field: str) -> Season:
    """Returns what is known of a season before one has passed. Requests that name no model of the fleet count for all,
    by their `demand`; those of an adapter for its base. `field` is where the section stands. Raises FleetFileError: the
    trace cannot be used.
    """
    if forecast.trace is None:
        return Season(season_s=forecast.season_s)
    known = {m.id for m in models}
    arrivals_s: defaultdict[str, list[float]] = defaultdict(list)
    from traces.readers.registry import iter_trace  # brings pyarrow, which a fleet without traces does without

    try:
        for record in iter_trace(forecast.trace):
            arrivals_s[record.model if record.model in known else _ANY].append(record.arrival_s)
    except TraceError as error:
        raise _not_usable(field, forecast.trace, str(error)) from error
    times_s = [t for of_model in arrivals_s.values() for t in of_model]
    if not times_s or max(times_s) == min(times_s):
        raise _not_usable(field, forecast.trace, "its requests have no times, or all the same; give a season's")
    hours, minutes = forecast.trace_start.split(":")
    season = season_of_arrivals(forecast.season_s, arrivals_s, starts_s=3600.0 * int(hours) + 60.0 * int(minutes))
    return Season(season_s=season.season_s, rates_per_s=_by_place(season.rates_per_s, models), seen=season.seen)


def check_trace(forecast: ForecastSection, field: str) -> None:
    """Looks whether there is a trace of a known format, without reading it. Raises FleetFileError."""
    if forecast.trace is None:
        return
    from traces.readers.registry import recognise

    try:
        recognise(Path(forecast.trace))
    except TraceError as error:
        raise _not_usable(field, forecast.trace, str(error)) from error


def _by_place(
    rates_per_s: Mapping[str, Sequence[float]], models: Sequence[ModelSection]
) -> dict[str, tuple[float, ...]]:
    """Gives each model its part of the requests that are anybody's, and each base what is asked of its adapters."""
    bins = len(next(iter(rates_per_s.values())))
    total = sum(m.demand.rate_per_s for m in models)
    found: dict[str, tuple[float, ...]] = {}
    for model in models:
        part = model.demand.rate_per_s / total if total > 0 else 1 / len(models)
        own, anybodys = rates_per_s.get(model.id, [0.0] * bins), rates_per_s.get(_ANY, [0.0] * bins)
        before = found.get(place := model.base or model.id, (0.0,) * bins)
        found[place] = tuple(b + o + part * a for b, o, a in zip(before, own, anybodys, strict=True))
    return found


def _not_usable(field: str, trace: str, reason: str) -> FleetFileError:
    return FleetFileError([f"{field}.trace = {trace!r}: {reason}"])
