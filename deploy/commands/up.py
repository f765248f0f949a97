"""muxfleet up"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from deploy.commands.fleet_screen import STOP_S, fleet_on_screen, serve_until_interrupted
from deploy.commands.terminal import terminal
from deploy.environment import running_fleets_folder, whole_environment
from deploy.errors import FleetLost
from deploy.fleet_file.one_model import fleet_of_model
from deploy.fleet_file.settings import FleetFile, check_sources, parse_fleet_file, read_fleet_file
from deploy.local.gateway_port import gateway_port
from deploy.local.running_fleets import take_applied


def up(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Fleet file, or a model to serve alone: m.gguf, org/name:Q4_K_M.")
    ],
    port: Annotated[int | None, typer.Option(help="Instead of the file's gateway.port.", min=1, max=65535)] = None,
    wait: Annotated[float, typer.Option(help="Seconds until the models must be ready.", min=1, max=1e6)] = 600.0,
    stop_wait: Annotated[
        float, typer.Option(help="Seconds that Ctrl-C lets streams finish before it ends all.", min=1, max=1e6)
    ] = STOP_S,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start the fleet again, as last applied, when what it runs on dies.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the logs of Ray and of the units.")] = False,
) -> None:
    """Start a fleet here, or on the cluster at RAY_ADDRESS, and serve until Ctrl-C.

    Example: muxfleet up examples/demo.yaml
    (its checkpoints: muxfleet demo --write examples)
    """
    console, environment = terminal(), whole_environment()
    fleet = _fleet(file, console)
    check_sources(fleet)
    is_serving = False
    try:
        with (
            gateway_port(fleet, asked=port, tell=console.print) as fleet,
            fleet_on_screen(fleet, console, is_verbose=verbose, wait_s=wait, stop_s=stop_wait) as running,
        ):
            is_serving = True
            serve_until_interrupted(console, running, fleet)
    except FleetLost as lost:
        if not (restart and is_serving):  # one that dies before it serves would die so for ever
            raise
        console.print(f"{lost}\nstarting the fleet again", style="yellow", soft_wrap=True)
        _run_again(console, environment)
    take_applied(running_fleets_folder())


def _fleet(file: Path, console: Console) -> FleetFile:
    """As the file says, or as it was last applied to the fleet that this process ran before it was lost."""
    applied = take_applied(running_fleets_folder())
    if applied is None:
        alone = fleet_of_model(str(file))
        return read_fleet_file(file) if alone is None else parse_fleet_file(alone, name=str(file), base=Path.cwd())
    console.print("as it was last applied")
    return parse_fleet_file(applied, name=f"{file} (as applied)", base=file.resolve().parent)


def _run_again(console: Console, environment: Mapping[str, str]) -> None:
    """This program afresh in this process: Ray cannot be started twice in one that lost it. In the environment that it
    was started in: the lost cluster's token is no user's wish, nor its ports, which somebody else may have by now.
    """
    console.file.flush()
    os.execve(sys.executable, sys.orig_argv, environment)
