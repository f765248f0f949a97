"""muxfleet apply"""

import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import httpx
import typer
from rich.console import Console

from deploy.commands.start_screen import ModelLines
from deploy.commands.terminal import terminal
from deploy.environment import export_environment, ray_address, replace_environment, running_fleets_folder
from deploy.errors import ChangeNotReady, FleetStartError, RestartNeeded
from deploy.fleet_file.settings import FleetFile, check_sources, read_fleet_file
from deploy.local.fleet_end import ending_with
from deploy.local.gateway_port import at_port
from deploy.local.ray_environment import joining_environment, notices_environment
from deploy.local.running_fleets import RunningFleet, find_fleet, keep_applied
from deploy.local.start_checks import check_cluster_answers

if TYPE_CHECKING:
    from deploy.serve.fleet_change import FleetChange


def apply(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Fleet file.")],
    wait: Annotated[float, typer.Option(help="Seconds until the models must be ready.", min=1, max=1e6)] = 600.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would change.")] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Also make changes that restart units or gateways.")
    ] = False,
    source_root: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the cluster's nodes hold relative sources.")
    ] = None,
) -> None:
    """Change the running fleet of that name, here or on the cluster at RAY_ADDRESS, to what the file says. Models,
    SLOs, demand, policy, placement and numbers of nodes and gateways change without a restart. A model that is given
    other weights changes unit by unit.

    Example: muxfleet apply examples/demo.yaml
    """
    console = terminal()
    fleet = read_fleet_file(file, source_root)
    if source_root is None:
        check_sources(fleet)
    began_s, file_port = time.monotonic(), fleet.gateway.port
    address, fleet, found = _found(fleet)
    check_cluster_answers(address)
    from deploy.local.local_ray import joined_ray  # Ray reads its environment when it is imported

    with _ending_with(found), joined_ray(address, is_verbose=False):
        from deploy.serve.serve_fleet import ServeFleet
        from deploy.serve.sole_change import sole_change

        running = ServeFleet(fleet)
        with sole_change(fleet.name):
            change = running.change()
            _show(console, change)
            if found is not None and fleet.gateway.port != file_port:
                console.print(
                    f"it serves at {found.url}; gateway.port {file_port} counts when it is started", style="dim"
                )
            if change.restarts and not restart and not dry_run:
                raise RestartNeeded(changes=change.restarts)
            is_made = not dry_run and bool(change.in_place or change.restarts)
            if is_made:
                running.deploy()
            if is_made and found is not None:  # also if nobody waits below
                _keep_for_restart(console, found, fleet)
        if is_made:
            try:
                problems = running.wait_until_ready(on_change=ModelLines(console).show, deadline_s=wait)
            except FleetStartError as error:  # its remedies are options of `muxfleet up`
                raise ChangeNotReady(reason=error.reason) from error
            if problems:
                raise ChangeNotReady(reason="; ".join(problems))
            console.print(f"applied in {time.monotonic() - began_s:.1f} s")


def _ending_with(found: RunningFleet | None) -> AbstractContextManager[None]:
    return nullcontext() if found is None else ending_with(found, running_fleets_folder())


def _show(console: Console, change: "FleetChange") -> None:
    for line in change.in_place:
        console.print(line, soft_wrap=True)
    for line in change.restarts:
        console.print(f"restarts {line}", style="yellow", soft_wrap=True)
    for line in change.not_applied:
        console.print(f"not while it runs, start the fleet anew: {line}", style="yellow", soft_wrap=True)
    if not (change.in_place or change.restarts):
        console.print("nothing changes")


def _keep_for_restart(console: Console, running: RunningFleet, fleet: FleetFile) -> None:
    folder = running_fleets_folder()
    try:
        keep_applied(folder, running, fleet.model_dump_json(exclude_defaults=True))
    except OSError as error:
        console.print(
            f"the change is made, but `up --restart` would go back to what was before: {folder} cannot be written: "
            f"{error.strerror}; make room there and apply again",
            style="yellow",
            soft_wrap=True,
        )


def _found(fleet: FleetFile) -> tuple[str, FleetFile, RunningFleet | None]:
    """The address of its cluster, the fleet at the port that it has there, and what `muxfleet up` says of it, where one
    runs it. Sets the environment.
    """
    address = ray_address()
    if address is not None:
        export_environment(notices_environment(is_verbose=False))
        return address, fleet, None
    found = find_fleet(running_fleets_folder(), fleet.name)
    replace_environment(joining_environment(auth_token=found.auth_token))
    port = httpx.URL(found.url).port
    return found.address, fleet if port is None else at_port(fleet, port), found
