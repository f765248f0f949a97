"""muxfleet incident"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import typer

from deploy.commands.duration import seconds_of
from deploy.commands.gateway_url import DEFAULT_URL, GatewayUrl
from deploy.commands.json_file import FiguresFile, write_json
from deploy.commands.terminal import terminal
from deploy.inspection.fleet_report import fleet_events
from deploy.inspection.incident_story import in_short, story_of, unknown_name
from router.telemetry.fleet_event import FleetEvent


def incident(
    url: GatewayUrl = DEFAULT_URL,
    since: Annotated[str, typer.Option(help="How far back: 90s, 30m, 1h, 2d.")] = "1h",
    model: Annotated[str | None, typer.Option(help="Only what concerns this model.")] = None,
    unit: Annotated[str | None, typer.Option(help="Only what concerns this unit.")] = None,
    request: Annotated[
        str | None, typer.Option(help="Only this request (its x-request-id), and its units around it.")
    ] = None,
    json_file: FiguresFile = None,
) -> None:
    """Tell in order what happened to a running fleet: plans, moves, loads, losses, leases, restarts and missed SLOs.

    Example: muxfleet incident --since 1h
    Example: muxfleet incident http://127.0.0.1:8000 --since 10m --model chat
    """
    told = fleet_events(url, since_s=seconds_of(since, option="--since"))
    unknown = unknown_name(told, model=model, unit=unit, request_id=request)
    events = () if unknown else story_of(told, model=model, unit=unit, request_id=request)
    console = terminal()
    for line in lines_of(events):
        console.print(line, soft_wrap=True)
    if not events:
        said = f"in the last {since} {unknown}" if told and unknown else f"no event in the last {since}"
        console.print(said, soft_wrap=True)
    if json_file is not None:
        write_json(json_file, msgspec.to_builtins(events))


def lines_of(events: Sequence[FleetEvent]) -> Sequence[str]:
    """Writes a line for each event, with the time of day in UTC, below one that counts them."""
    if not events:
        return ()
    first, last = (datetime.fromtimestamp(e.at_s, UTC) for e in (events[0], events[-1]))
    until = f"{last:%H:%M:%S}" if last.date() == first.date() else f"{last:%Y-%m-%d %H:%M:%S}"
    width = max(len(e.kind.value) for e in events)
    return (f"{first:%Y-%m-%d %H:%M:%S} to {until} UTC: {in_short(events)}", *(_line(e, width) for e in events))


def _line(event: FleetEvent, width: int) -> str:
    at = datetime.fromtimestamp(event.at_s, UTC)
    where = " ".join(part for part in (event.unit, event.model, event.request_id) if part)
    return f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}  {event.kind.value:<{width}}  " + ": ".join(
        part for part in (where, event.text) if part
    )
