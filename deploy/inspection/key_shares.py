"""Asks a running fleet what its API keys get."""

import msgspec

from deploy.errors import FleetUnreachable
from deploy.inspection.live_events import live_events
from router.access.key_fairness import KeysReport


def key_shares(url: str) -> KeysReport | None:
    """None: the gateways do not tell. Raises FleetUnreachable."""
    event = next(live_events(url, "keys"), None)
    if event is None or event.topic != "keys":
        return None
    try:
        return msgspec.json.decode(event.data, type=KeysReport)
    except msgspec.DecodeError as error:
        raise FleetUnreachable(address=url, reason=f"its keys are not of this version: {error}") from error
