"""The command that a record of a run shows."""

from pathlib import Path

import typer
from typer.testing import CliRunner

from deploy.commands.json_file import given_command


def test_given_command__options_of_all_kinds__are_there_but_for_secrets() -> None:
    said = []
    app = typer.Typer()

    @app.command("bench")
    def bench(
        context: typer.Context,
        url: str,
        trace: Path = typer.Option(),  # noqa: B008 - Typer's way
        api_key: str = typer.Option(""),
        policy: list[str] = typer.Option([]),  # noqa: B008 - Typer's way
        quick: bool = typer.Option(False, "--quick"),
        seed: int = 3,
    ) -> None:
        said.append(given_command(context))

    app.command("other")(lambda: None)
    words = ["bench", "https://me:secret@host/x", "--api-key", "secret", "--trace", "a b.csv", "--quick"]
    done = CliRunner().invoke(app, [*words, "--policy", "mux", "--policy", "adbs"])
    assert done.exit_code == 0, done.output
    options = "--trace 'a b.csv' --api-key ... --policy mux --policy adbs --quick"
    assert said == [f"muxfleet bench https://...@host/x {options}"]
