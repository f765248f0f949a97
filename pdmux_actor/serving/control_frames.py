"""The stream on which a unit tells the control loop its heartbeats: frames as of `frames`, msgpack, no pickle.

The unit opens it with Hello and then sends a Heartbeat at a time; each is answered. Serve's own calls cost each side a
millisecond and more, which a control loop of a thousand units does not have.
"""

from dataclasses import dataclass

import msgspec

from pdmux_actor.lease import Lease, UnitReport
from pdmux_actor.serving.frames import Hello, Refused

CONTROL_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlAddress:
    """Says where the control loop hears units, and what lets them in. It is told by a call of Serve's."""

    endpoint: str
    token: str


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    report: UnitReport


class Leased(msgspec.Struct, frozen=True, tag="leased"):
    """None: the lease whose version the report bears is in force."""

    lease: Lease | None


ToControl = Hello | Heartbeat
FromControl = Leased | Refused
