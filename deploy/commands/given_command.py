"""The command as it was given, for records of what it found."""

import re
import shlex
from collections.abc import Iterator

import typer

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
