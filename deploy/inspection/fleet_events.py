"""Asks a running fleet over HTTP what happened lately."""

import msgspec

from deploy.errors import FleetUnreachable
from deploy.inspection.fleet_report import get_json
from router.telemetry.fleet_event import FleetEvent

_PATH = "/fleet/events"


def fleet_events(url: str, *, since_s: int) -> tuple[FleetEvent, ...]:
    """Returns the events of the last `since_s` seconds, oldest first. Raises FleetUnreachable."""
    content = get_json(url, _PATH, {"since_s": str(since_s)})
    try:
        return msgspec.json.decode(content, type=tuple[FleetEvent, ...])
    except msgspec.DecodeError as error:
        raise FleetUnreachable(address=url, reason=f"{_PATH} is not of a fleet of this version: {error}") from error
