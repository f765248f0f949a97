"""Files that a command writes: what it found, for scripts, and by which command."""

import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from deploy.errors import OptionNotUsable, OutputNotWritable
from traces.whole_file import write_whole


def writable(path: Path | None) -> Path | None:
    """A callback of options: says before the work, not after it, that its result has no place to go.

    Raises OutputNotWritable.
    """
    if path is None:
        return None
    is_there = _is_there(path)
    if is_there and path.is_dir():
        raise OutputNotWritable(path=str(path), reason="Is a directory")
    if not path.parent.is_dir():
        raise OutputNotWritable(path=str(path), reason=f"there is no folder {path.parent}; make it, or name another")
    if not os.access(path if is_there else path.parent, os.W_OK):
        raise OutputNotWritable(path=str(path), reason="Permission denied")
    return path


def writable_folder(path: Path | None) -> Path | None:
    """`writable`, of a folder that may have to be made, with those above it.

    Raises OutputNotWritable.
    """
    if path is None:
        return None
    there = next(folder for folder in (path, *path.absolute().parents) if _is_there(folder))
    if not there.is_dir():
        raise OutputNotWritable(path=str(path), reason=f"{there} is no folder; name another")
    if not os.access(there, os.W_OK | os.X_OK):
        raise OutputNotWritable(path=str(path), reason="Permission denied")
    return path


def _is_there(path: Path) -> bool:
    """`Path.exists` lets through that a folder is not ours to look into, or that a name is too long."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise OutputNotWritable(path=str(path), reason=error.strerror or str(error)) from error
    return True


def html_page(path: Path | None) -> Path | None:
    """`writable`, of a page: a forgotten name would else let it replace the first of the files that it shall show.

    Raises OptionNotUsable and OutputNotWritable.
    """
    if path is not None and path.suffix.lower() not in (".html", ".htm"):
        raise OptionNotUsable(
            option="OUT.html", value=path, remedy="name the page with .html; of `report` it comes before the runs"
        )
    return writable(path)


FiguresFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the figures as JSON.", callback=writable)
]

PlotFolder = Annotated[
    Path | None,
    typer.Option("--plot", metavar="DIR", help="Write plots (needs muxfleet[plots]).", callback=writable_folder),
]


def write_json(path: Path, data: object) -> None:
    """Raises OutputNotWritable."""
    try:
        write_whole(path, (json.dumps(data, indent=2, allow_nan=False) + "\n").encode())
    except OSError as error:
        raise OutputNotWritable(path=str(path), reason=error.strerror or str(error)) from error


_USER = re.compile(r"://[^/@\s]*@")  # a name and a password in an address


def given_command(context: typer.Context) -> str:
    """Returns arguments and options in the order of the help. Keys and passwords are left out."""
    words = ["muxfleet", *context.command_path.split()[1:]]
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE":
            words += _said(parameter.name or "", parameter.opts[0], context.params[parameter.name or ""])
    return shlex.join(words)


def without_user(address: str) -> str:
    return _USER.sub("://...@", address)


def _said(name: str, option: str, value: object) -> Iterator[str]:
    for one in value if isinstance(value, list | tuple) else (value,):
        if option.startswith("-"):
            yield option
        if not isinstance(one, bool):
            yield "..." if name.endswith("key") else without_user(str(one))
