"""muxfleet uncordon"""

from deploy.commands.joined_fleet import FleetName, PlaceName, joined_fleet
from deploy.commands.terminal import terminal
from deploy.inspection.fleet_places import find_place


def uncordon(place: PlaceName, fleet: FleetName = None) -> None:
    """Let a unit or a node that was cordoned or drained take models again.

    Example: muxfleet uncordon 10.0.3.7
    """
    with joined_fleet(fleet) as controller:
        scope, name = find_place(controller.status(), place)
        had_one = controller.uncordon(scope, name)
        terminal().print(f"{scope} {name}: {'uncordoned' if had_one else 'it has no cordon'}")
