"""muxfleet top"""

import time
from collections.abc import Mapping
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from deploy.commands.fleet_tables import decision_table, gateway_table, model_table, problems, unit_table
from deploy.commands.status import DEFAULT_URL
from deploy.commands.terminal import terminal
from deploy.control.fleet_status import FleetStatus
from deploy.errors import FleetUnreachable
from deploy.inspection.fleet_report import fleet_report
from deploy.inspection.gateway_figures import ModelFigures, RecentFigures, read_gateways


def top(
    url: Annotated[str, typer.Argument(metavar="[URL]", help="A fleet's gateway.")] = DEFAULT_URL,
    every: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1, max=1e6)] = 1.0,
    count: Annotated[int | None, typer.Option(help="Stop after so many looks.", min=1)] = None,
) -> None:
    """Watch models, units, partitions, quotas and attainment of a running fleet until Ctrl-C.

    Example: muxfleet top http://127.0.0.1:8000
    """
    fleet = fleet_report(url)
    recent = RecentFigures()
    looks = 1
    with Live(_screen(url, fleet, _lately(url, recent)), console=terminal(), auto_refresh=False, screen=False) as live:
        while count is None or looks < count:
            time.sleep(every)
            looks += 1
            try:
                fleet, trouble = fleet_report(url), None
            except FleetUnreachable as error:  # it may be restarting: the last picture stays
                trouble = str(error)
            live.update(_screen(url, fleet, _lately(url, recent), trouble), refresh=True)


def _lately(url: str, recent: RecentFigures) -> Mapping[str, ModelFigures]:
    """Nothing while the gateways do not tell."""
    reading = read_gateways(url, time.monotonic())
    return {} if reading is None else recent.add(reading)


def _screen(
    url: str, fleet: FleetStatus, lately: Mapping[str, ModelFigures], trouble: str | None = None
) -> RenderableType:
    head = Text(f"{url}  policy {fleet.policy}  {time.strftime('%H:%M:%S')}")
    if trouble is not None:
        head.append(f"  {trouble}", style="red")
    warnings = [Text(line, style="yellow") for line in problems(fleet)]
    decisions: list[RenderableType] = [Text(""), decision_table(fleet.decisions, newest=3)] if fleet.decisions else []
    seen: list[RenderableType] = [gateway_table(lately), Text("")] if lately else []
    return Group(head, Text(""), model_table(fleet), Text(""), *seen, unit_table(fleet), *decisions, *warnings)
