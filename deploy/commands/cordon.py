"""muxfleet cordon, muxfleet uncordon"""

from deploy.commands.joined_fleet import FleetName, PlaceName, joined_fleet
from deploy.commands.terminal import terminal
from deploy.control.cordons import Cordon
from deploy.inspection.fleet_places import find_place


def cordon(place: PlaceName, fleet: FleetName = None) -> None:
    """Place nothing new on a unit or a node; what is there stays and is served. `muxfleet uncordon` ends it.

    Example: muxfleet cordon 10.0.3.7
    """
    with joined_fleet(fleet) as controller:
        status = controller.status()
        scope, name = find_place(status, place)
        held = next((c for c in status.cordons if (c.scope, c.name) == (scope, name)), None)
        if held is None:
            controller.cordon(Cordon(scope=scope, name=name))
        already = "" if held is None else "already "
        terminal().print(f"{scope} {name}: {already}{'drained' if held and held.drains else 'cordoned'}")


def uncordon(place: PlaceName, fleet: FleetName = None) -> None:
    """Let a unit or a node that was cordoned or drained take models again.

    Example: muxfleet uncordon 10.0.3.7
    """
    with joined_fleet(fleet) as controller:
        scope, name = find_place(controller.status(), place)
        had_one = controller.uncordon(scope, name)
        terminal().print(f"{scope} {name}: {'uncordoned' if had_one else 'it has no cordon'}")
