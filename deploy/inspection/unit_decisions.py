"""Asks a unit of a running fleet over HTTP what it decided lately."""

from typing import cast
from urllib.parse import quote

from deploy.inspection.fleet_report import decoded, get_json
from pdmux_actor.scheduling.decision import LogExcerpt

_TIMEOUT_S = 20.0


def unit_decisions(url: str, unit: str, *, last: int) -> LogExcerpt:
    """Raises FleetUnreachable: nobody answers, or the unit does not."""
    path = f"/units/{quote(unit, safe='')}/decisions"
    content = get_json(url, path, {"last": str(last)}, timeout_s=_TIMEOUT_S)
    return cast(LogExcerpt, decoded(url, content, LogExcerpt, f"{path} is not a decision log"))
