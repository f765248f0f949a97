"""muxfleet up"""

from pathlib import Path
from typing import Annotated

import typer

from deploy.commands.fleet_screen import fleet_on_screen, serve_until_interrupted, with_free_port
from deploy.commands.terminal import terminal
from deploy.settings import check_sources, read_fleet_file


def up(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Fleet file.")],
    port: Annotated[int | None, typer.Option(help="Instead of the file's gateway.port.", min=1, max=65535)] = None,
    wait: Annotated[float, typer.Option(help="Seconds until the models must be ready.", min=1, max=1e6)] = 600.0,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the logs of Ray and of the units.")] = False,
) -> None:
    """Start a fleet here, or on the cluster at RAY_ADDRESS, and serve until Ctrl-C.

    Example: muxfleet up examples/demo.yaml
    (its checkpoints: muxfleet demo --write examples)
    """
    console = terminal()
    fleet = read_fleet_file(file)
    check_sources(fleet)
    fleet = with_free_port(fleet, console, asked=port)
    with fleet_on_screen(fleet, console, is_verbose=verbose, wait_s=wait) as running:
        serve_until_interrupted(console, running, fleet)
