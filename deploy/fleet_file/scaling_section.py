"""The fleet file's `pools[].nodes` and `pools[].scaling`."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from deploy.fleet_file.fleet_problems import Problem
from deploy.fleet_file.forecast_section import ForecastSection
from deploy.fleet_file.section import Section
from deploy.fleet_file.setting_types import TimeOfDay
from deploy.fleet_file.source_paths import absolute
from placement.scaling.pool_size import ScalingRules, ScheduledFloor
from placement.scaling.seasonal_forecast import Season

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
_DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


class NodesSection(Section):
    min: Annotated[int, Field(ge=1, le=10_000)] = 1
    max: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Default: the same as min. More: the pool grows and shrinks with demand (docs/scaling.md)."""


class ScheduleEntry(Section):
    """Keeps at least so many nodes at certain times of certain days (UTC)."""

    nodes: PositiveInt
    start: TimeOfDay = "00:00"
    end: TimeOfDay = "00:00"
    """One that is not after `start` is on the next day."""
    days: tuple[Day, ...] = _DAYS
    """Days on which it starts."""

    def floor(self) -> ScheduledFloor:
        days = frozenset(_DAYS.index(day) for day in self.days)
        return ScheduledFloor(nodes=self.nodes, from_s=_seconds(self.start), to_s=_seconds(self.end), days=days)


class SpotSection(Section):
    """Says that the provider may take nodes away again, and lends them for less."""

    price_per_hour: PositiveFloat
    """Of one node: what it costs in the place of cost_per_hour."""
    lost_every_s: Annotated[float, Field(ge=60, le=31 * 86400)]
    """Mean time after which a node is taken away: `muxfleet simulate --control-loop` draws by it when that is. In a
    running fleet the provider decides."""
    notice_s: Annotated[float, Field(ge=0, le=3600)] = 120.0
    """So long before, the provider says so: models and requests move elsewhere meanwhile. For simulations, too."""


class ScalingSection(Section):
    """Says how a pool whose nodes.max is above nodes.min follows demand."""

    target_attainment: Annotated[float, Field(gt=0, lt=1)] = 0.99
    """Share of requests that shall be in time. Of several pools the highest holds: they serve the same models."""
    schedule: tuple[ScheduleEntry, ...] = ()
    """Nodes that shall be there at certain times, whatever demand is."""
    forecast: ForecastSection | None = None
    """Demand repeats, and what comes by that is made room for beforehand. Default: only what grows is foreseen."""
    cooldown_s: Annotated[float, Field(ge=0, le=86400)] = 300.0
    """A pool shrinks only by nodes that it has not needed for so long, and so long after its last change."""
    max_step: PositiveInt = 4
    """Nodes that one change may add or take."""
    cost_per_hour: PositiveFloat | None = None
    """Of one node, in any currency: pools compete by it. Default: 1 for each of its GPUs."""
    spot: SpotSection | None = None
    """The provider may take nodes of this pool away. Default: it does not."""
    shadow: bool = False
    """Only tells what it would do."""
    provision_s: Annotated[float, Field(ge=0, le=86400)] = 120.0
    """What a new node takes to come, until that has been measured."""

    @property
    def price_per_hour(self) -> float | None:
        """Returns what a node costs, as far as the file says."""
        return self.cost_per_hour if self.spot is None else self.spot.price_per_hour


def scaling_rules(
    nodes: NodesSection, scaling: ScalingSection | None, gpus_per_node: int, forecast: Season | None = None
) -> ScalingRules:
    settings = scaling or ScalingSection()
    return ScalingRules(
        least_nodes=nodes.min,
        most_nodes=nodes.max or nodes.min,
        target_attainment=settings.target_attainment,
        cooldown_s=settings.cooldown_s,
        max_step=settings.max_step,
        cost_per_hour=float(gpus_per_node) if settings.price_per_hour is None else settings.price_per_hour,
        provision_s=settings.provision_s,
        shadow=settings.shadow,
        schedule=tuple(entry.floor() for entry in settings.schedule),
        forecast=forecast,
    )


def scaling_problems(nodes: NodesSection, scaling: ScalingSection | None, path: tuple[str | int, ...]) -> list[Problem]:
    if nodes.max is not None and nodes.max < nodes.min:
        remedy = f"smaller than min ({nodes.min}); raise it or lower min"
        return [Problem(path=(*path, "nodes", "max"), value=nodes.max, remedy=remedy)]
    if scaling is None:
        return []
    if nodes.max is None or nodes.max == nodes.min:
        remedy = f"this pool always has {nodes.min} nodes; set nodes.max above nodes.min, or remove it"
        return [Problem(path=(*path, "scaling"), value=None, remedy=remedy)]
    problems = []
    if scaling.spot is not None and scaling.cost_per_hour is not None:
        where = (*path, "scaling", "cost_per_hour")
        remedy = "spot.price_per_hour says what a node costs; remove this, or spot"
        problems.append(Problem(path=where, value=scaling.cost_per_hour, remedy=remedy))
    for i, entry in enumerate(scaling.schedule):
        where = (*path, "scaling", "schedule", i)
        if entry.nodes > nodes.max:
            remedy = f"more than nodes.max ({nodes.max}); lower it or raise nodes.max"
            problems.append(Problem(path=(*where, "nodes"), value=entry.nodes, remedy=remedy))
        if not entry.days:
            problems.append(Problem(path=(*where, "days"), value="[]", remedy="name a day, or remove it for every day"))
    return problems


def _seconds(time_of_day: str) -> float:
    hours, minutes = time_of_day.split(":")
    return 3600.0 * int(hours) + 60.0 * int(minutes)


def with_trace_beside(scaling: ScalingSection | None, base: Path) -> ScalingSection | None:
    """Returns the section with the path of its trace made absolute."""
    if scaling is None or scaling.forecast is None or scaling.forecast.trace is None:
        return scaling
    forecast = scaling.forecast.model_copy(update={"trace": absolute(scaling.forecast.trace, base)})
    return scaling.model_copy(update={"forecast": forecast})
