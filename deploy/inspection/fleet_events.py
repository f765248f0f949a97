"""Asks a running fleet over HTTP what happened lately."""

from typing import cast

from deploy.inspection.fleet_report import decoded, get_json
from router.telemetry.fleet_event import FleetEvent

_PATH = "/fleet/events"


def fleet_events(url: str, *, since_s: int) -> tuple[FleetEvent, ...]:
    """Returns the events of the last `since_s` seconds, oldest first. Raises FleetUnreachable."""
    told = decoded(
        url, get_json(url, _PATH, {"since_s": str(since_s)}), tuple[FleetEvent, ...], f"{_PATH} is not of a fleet"
    )
    return cast(tuple[FleetEvent, ...], told)
