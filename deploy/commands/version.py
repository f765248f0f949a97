"""muxfleet --version"""

from importlib.metadata import version
from typing import Annotated

import typer


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"muxfleet {version('muxfleet')}")
        raise typer.Exit


def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Many LLMs on few GPUs behind one OpenAI-compatible endpoint."""
