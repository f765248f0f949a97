"""muxfleet keys"""

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import ValidationError

from deploy.commands.duration import seconds_of
from deploy.commands.fitted_table import FittedTable
from deploy.commands.json_file import writable, write_json
from deploy.commands.terminal import terminal
from deploy.commands.verbs import Verb
from deploy.errors import KeyFileError, OptionNotUsable, OutputNotWritable
from deploy.fleet_file.fleet_problems import problems_of
from deploy.fleet_file.key_file import KeyFile, StoredKey, read_key_file, sole_writer, write_key_file
from router.access.api_keys import make_key

KeysFile = Annotated[Path, typer.Option("--file", metavar="FILE", help="File of keys; `gateway.api_keys` names it.")]
_DEFAULT = Path("keys.yaml")

keys = typer.Typer(
    help="API keys of a fleet. Gateways read the file again when it changes: no restart.", no_args_is_help=True
)


@keys.command(cls=Verb)
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose key it is: letters, digits, dots, dashes.")],
    file: KeysFile = _DEFAULT,
    model: Annotated[list[str] | None, typer.Option(metavar="ID", help="A model it may use; default: all.")] = None,
    requests_per_minute: Annotated[int | None, typer.Option(metavar="N", min=1)] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(metavar="N", min=1, help="Prompts and answers.")] = None,
    priority: Annotated[
        Literal["low", "normal", "high"], typer.Option(help="The highest that its requests may ask for.")
    ] = "normal",
    admin: Annotated[bool, typer.Option("--admin", help="May also read units' decisions.")] = False,
    tighten_slo: Annotated[
        bool, typer.Option("--tighten-slo", help="Its requests may have tighter targets than their model's own.")
    ] = False,
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="Refused after so long, such as 90d or 12h; default: never.")
    ] = None,
) -> None:
    """Make a key. It is printed once, on standard output; the file holds its hash.

    Example: muxfleet keys new team-a --model qwen-small --requests-per-minute 60
    """
    if sys.stdout is None:  # the shell has closed it
        raise OutputNotWritable(path="standard output", reason="it is closed, and the key is shown nowhere else")
    fresh = make_key()
    try:
        key = StoredKey(
            id=fresh.key_id,
            name=name,
            hash=fresh.hash,
            models=None if model is None else tuple(model),
            requests_per_minute=requests_per_minute,
            tokens_per_minute=tokens_per_minute,
            priority=priority,
            admin=admin,
            tighten_slo=tighten_slo,
            expires=None if expires is None else _after(seconds_of(expires, option="--expires")),
        )
    except ValidationError as error:
        first = next(problems_of(error, StoredKey))
        option = "NAME" if first.path[0] == "name" else f"--{str(first.path[0]).removesuffix('s').replace('_', '-')}"
        raise OptionNotUsable(option=option, value=repr(first.value), remedy=first.remedy) from error
    with sole_writer(file):
        stored = read_key_file(file) if file.exists() else KeyFile()
        write_key_file(file, stored.with_key(key))
    try:
        typer.echo(f"key {fresh.key_id} of {name} added to {file}; it is shown this once:", err=True)
        typer.echo(fresh.secret)
    except OSError:  # nobody knows it then
        with sole_writer(file):
            write_key_file(file, read_key_file(file).without(fresh.key_id))
        raise


@keys.command(name="list", cls=Verb)
def list_keys(
    file: KeysFile = _DEFAULT,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the table as JSON.", callback=writable)
    ] = None,
) -> None:
    """Show the keys of a file, without their hashes.

    Example: muxfleet keys list --file keys.yaml
    """
    stored = read_key_file(file)
    table = FittedTable(keys=2)
    for title in (
        "id",
        "name",
        "models",
        "requests/min",
        "tokens/min",
        "priority",
        "admin",
        "tight targets",
        "expires",
    ):
        table.add_column(title)
    for key in stored.keys:
        table.add_row(
            key.id,
            key.name,
            "all" if key.models is None else ", ".join(key.models),
            str(key.requests_per_minute or "-"),
            str(key.tokens_per_minute or "-"),
            key.priority,
            "yes" if key.admin else "",
            "yes" if key.tighten_slo else "",
            _expiry(key.expires),
        )
    terminal().print(table)
    if json is not None:
        write_json(json, {"keys": [key.model_dump(mode="json", exclude={"hash"}) for key in stored.keys]})


@keys.command(cls=Verb)
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="As `muxfleet keys list` shows it.")],
    file: KeysFile = _DEFAULT,
) -> None:
    """Take a key away. Gateways refuse it within seconds.

    Example: muxfleet keys revoke 3f9a1c2b7d4e
    """
    with sole_writer(file):
        stored = read_key_file(file)
        if all(key.id != key_id for key in stored.keys):
            raise KeyFileError(path=str(file), reason=f"no key has the id {key_id!r}; `muxfleet keys list` shows them")
        write_key_file(file, stored.without(key_id))
    typer.echo(f"key {key_id} revoked in {file}", err=True)


def _after(seconds: int) -> datetime:
    return datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=seconds)


def _expiry(expires: datetime | None) -> str:
    if expires is None:
        return "-"
    shown = f"{expires.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    return f"{shown} (expired)" if expires <= datetime.now(UTC) else shown
