"""Reaches the control loop of a running fleet as the cluster's owner does: with Ray's token, not with an API key."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.environment import export_environment, ray_address, replace_environment, running_fleets_folder
from deploy.local.fleet_end import ending_with
from deploy.local.ray_environment import joining_environment, notices_environment
from deploy.local.running_fleets import find_fleet, only_fleet
from deploy.local.start_checks import check_cluster_answers

if TYPE_CHECKING:
    from deploy.serve.controller_calls import ControllerCalls

PlaceName = Annotated[
    str,
    typer.Argument(metavar="UNIT|NODE", help="A unit, or a node by Ray's id or address; the beginning is enough."),
]
FleetName = Annotated[
    str | None,
    typer.Option("--fleet", metavar="NAME", help="Of the fleets that `muxfleet up` runs here. Default: the only one."),
]


@contextmanager
def joined_fleet(name: str | None) -> Iterator["ControllerCalls"]:
    """The fleet in the cluster at RAY_ADDRESS, else the one of that name, else the only one that runs here.

    Raises:
        FleetUnreachable: there is none.
        ClusterUnreachable: nobody answers at that address.
        FleetEnded: it ended meanwhile.
    """
    address = ray_address()
    ending: AbstractContextManager[None] = nullcontext()
    told = f"RAY_ADDRESS {address}"
    if address is not None:
        export_environment(notices_environment(is_verbose=False))
    else:
        folder = running_fleets_folder()
        found = only_fleet(folder) if name is None else find_fleet(folder, name)
        replace_environment(joining_environment(auth_token=found.auth_token))
        address, told, ending = found.address, found.name, ending_with(found, folder)
    check_cluster_answers(address)
    from deploy.local.local_ray import joined_ray  # Ray reads its environment when it is imported

    with ending, joined_ray(address, is_verbose=False):
        from deploy.serve.controller_calls import ControllerCalls

        yield ControllerCalls(told)
