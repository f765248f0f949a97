"""Asks a running fleet what its API keys get."""

from typing import cast

from deploy.inspection.fleet_report import decoded
from deploy.inspection.live_events import live_events
from router.access.key_fairness import KeysReport


def key_shares(url: str) -> KeysReport | None:
    """None: the gateways do not tell. Raises FleetUnreachable."""
    event = next(live_events(url, "keys"), None)
    if event is None or event.topic != "keys":
        return None
    return cast(KeysReport, decoded(url, event.data, KeysReport, "its keys are not"))
