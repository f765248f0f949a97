"""muxfleet render and muxfleet schema"""

import json
from pathlib import Path
from typing import Annotated

import typer

from deploy.fleet_file.settings import fleet_json_schema, read_fleet_file
from deploy.serve.render import refuse_ranges, serve_yaml


def render(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Fleet file.")],
    source_root: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the cluster's nodes hold relative sources.")
    ] = None,
) -> None:
    """Print the Serve config of a fleet, for `serve deploy`.

    Example: muxfleet render examples/demo.yaml > serve.yaml && serve deploy serve.yaml
    """
    fleet = read_fleet_file(file, source_root)
    refuse_ranges(fleet, str(file))
    typer.echo(serve_yaml(fleet), nl=False)


def schema() -> None:
    """Print the JSON schema of fleet files, for editors.

    Example: muxfleet schema > fleet.schema.json
    """
    typer.echo(json.dumps(fleet_json_schema(), indent=2))
