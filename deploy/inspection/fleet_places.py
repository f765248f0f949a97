"""Finds the unit or the node that a person means."""

from collections.abc import Sequence

from deploy.control.cordons import CordonScope
from deploy.control.fleet_status import FleetStatus, UnitStatus
from deploy.errors import PlaceNotFound

Place = tuple[CordonScope, str]


def find_place(fleet: FleetStatus, asked: str) -> Place:
    """Finds it by a unit's id, Ray's id of a node or a node's address, the beginning of an id being enough. A node that
    is gone is still found while it has a cordon.

    Raises:
        PlaceNotFound: nothing goes by that name, or several do.
    """
    names = {(CordonScope.UNIT, u.report.unit_id) for u in fleet.units}
    names |= {(CordonScope.NODE, u.report.node) for u in fleet.units}
    names |= {(c.scope, c.name) for c in fleet.cordons}
    if exact := {place for place in names if place[1] == asked}:
        return _only(exact, asked)
    found = {place for place in names if asked and place[1].startswith(asked)}
    found |= {(CordonScope.NODE, u.report.node) for u in fleet.units if _address(u) == asked}
    if not found:
        raise PlaceNotFound(asked=asked, reason=f"the fleet has {_all_of(fleet)}")
    return _only(found, asked)


def units_at(fleet: FleetStatus, place: Place) -> Sequence[UnitStatus]:
    scope, name = place
    return [u for u in fleet.units if name == (u.report.unit_id if scope is CordonScope.UNIT else u.report.node)]


def _only(found: set[Place], asked: str) -> Place:
    if len(found) > 1:
        raise PlaceNotFound(asked=asked, reason=f"several are meant: {', '.join(sorted(name for _, name in found))}")
    return found.pop()


def _all_of(fleet: FleetStatus) -> str:
    units = ", ".join(sorted(u.report.unit_id for u in fleet.units)) or "none now"
    nodes = ", ".join(sorted({f"{u.report.node} ({_address(u)})" for u in fleet.units})) or "none now"
    return f"units {units}; nodes {nodes}"


def _address(unit: UnitStatus) -> str:
    return unit.report.endpoint.rpartition(":")[0].strip("[]")
