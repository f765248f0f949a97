"""muxfleet top"""

import time
from collections.abc import Mapping
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from deploy.commands.fairness_tables import fairness_line
from deploy.commands.fleet_tables import gateway_table
from deploy.commands.live_tables import (
    live_decision_table,
    live_model_table,
    live_pool_table,
    live_problems,
    live_unit_table,
)
from deploy.commands.status import DEFAULT_URL
from deploy.commands.terminal import terminal
from deploy.inspection.gateway_figures import ModelFigures, RecentFigures, read_gateways
from deploy.inspection.live_events import FollowedFleet
from deploy.inspection.live_fleet import LiveFleet


def top(
    url: Annotated[str, typer.Argument(metavar="[URL]", help="A fleet's gateway.")] = DEFAULT_URL,
    every: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1, max=1e6)] = 1.0,
    count: Annotated[int | None, typer.Option(help="Stop after so many looks.", min=1)] = None,
) -> None:
    """Watch models, units, partitions, quotas and attainment of a running fleet until Ctrl-C.

    Example: muxfleet top http://127.0.0.1:8000
    """
    followed = FollowedFleet(url)
    recent = RecentFigures()
    looks = 1
    with Live(_look(url, followed, recent), console=terminal(), auto_refresh=False, screen=False) as live:
        while count is None or looks < count:
            time.sleep(every)
            looks += 1
            live.update(_look(url, followed, recent), refresh=True)


def _look(url: str, followed: FollowedFleet, recent: RecentFigures) -> RenderableType:
    """What is known stays while nobody answers: the fleet may be restarting."""
    reading = read_gateways(url, time.monotonic())  # the stream has no first tokens and gaps
    lately = {} if reading is None else recent.add(reading)
    fleet, trouble = followed.look()
    return _screen(url, fleet, lately, trouble)


def _screen(url: str, fleet: LiveFleet, lately: Mapping[str, ModelFigures], trouble: str) -> RenderableType:
    units = f"{fleet.num_units} units" if fleet.num_units != 1 else "1 unit"
    head = Text(f"{url}  policy {fleet.policy}  {units}  {time.strftime('%H:%M:%S')}")
    if trouble:
        head.append(f"  {trouble}", style="red")
    parts: list[RenderableType] = [head, Text(""), live_model_table(fleet.models), Text("")]
    if lately:
        parts += [gateway_table(lately), Text("")]
    if len(fleet.pools) > 1 or fleet.matching > len(fleet.units):
        parts += [live_pool_table(fleet.pools), Text("")]
    parts.append(live_unit_table(fleet.units))
    if fleet.matching > len(fleet.units):
        parts.append(Text(f"{len(fleet.units)} of {fleet.matching} units, those in trouble first"))
    if (fairness := fairness_line(fleet, None)) is not None:
        parts += [Text(""), Text(fairness)]
    if fleet.decisions:
        parts += [Text(""), live_decision_table(fleet.decisions, newest=3)]
    return Group(*parts, *(Text(line, style="yellow") for line in live_problems(fleet)))
