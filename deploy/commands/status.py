"""muxfleet status"""

from typing import Annotated

import typer

from deploy.commands.fleet_tables import as_dict, decision_table, model_table, problems, unit_table
from deploy.commands.json_file import FiguresFile, write_json
from deploy.commands.terminal import terminal
from deploy.inspection.fleet_report import fleet_report

DEFAULT_URL = "http://127.0.0.1:8000"


def status(
    url: Annotated[str, typer.Argument(metavar="[URL]", help="A fleet's gateway.")] = DEFAULT_URL,
    json_file: FiguresFile = None,
    decisions: Annotated[int, typer.Option(help="Newest decisions of the control loop to show.", min=0)] = 5,
) -> None:
    """Print models and units of a running fleet, and why models were moved. Exit code 1 unless every model is ready or
    asleep.

    Example: muxfleet status http://127.0.0.1:8000
    """
    fleet = fleet_report(url)
    console = terminal()
    console.print(model_table(fleet))
    console.print()
    console.print(unit_table(fleet))
    if decisions and fleet.decisions:
        console.print()
        console.print(decision_table(fleet.decisions, newest=decisions))
    for problem in problems(fleet):
        console.print(problem, style="yellow", soft_wrap=True)
    if json_file is not None:
        write_json(json_file, as_dict(fleet))
    if any(m.state not in ("ready", "asleep") for m in fleet.models):
        raise typer.Exit(1)
