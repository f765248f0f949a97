"""muxfleet render and muxfleet schema"""

import json
from pathlib import Path
from typing import Annotated

import typer

from deploy.fleet_file.settings import fleet_json_schema, read_fleet_file
from deploy.serve.render import serve_yaml


def render(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Fleet file.")],
    source_root: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the cluster's nodes hold relative sources.")
    ] = None,
) -> None:
    """Print the Serve config of a fleet, for `serve deploy`.

    Example: muxfleet render examples/demo.yaml > serve.yaml && serve deploy serve.yaml
    """
    typer.echo(serve_yaml(read_fleet_file(file, source_root)), nl=False)


def schema() -> None:
    """Print the JSON schema of fleet files, for editors.

    Example: muxfleet schema > fleet.schema.json
    """
    typer.echo(json.dumps(fleet_json_schema(), indent=2))
