"""muxfleet status"""

import time
from typing import Annotated

import typer

from deploy.commands.fairness_tables import fairness_dict, fairness_line, key_table
from deploy.commands.fleet_tables import as_dict, decision_table, model_table, pool_table, problems, unit_table
from deploy.commands.json_file import FiguresFile, write_json
from deploy.commands.terminal import terminal
from deploy.errors import FleetUnreachable
from deploy.inspection.fleet_report import fleet_report
from deploy.inspection.key_shares import key_shares
from deploy.inspection.live_fleet import LiveSelection
from deploy.inspection.live_picture import live_fleet
from router.access.key_fairness import KeysReport

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
    keys, trouble = _keys(url)
    live = live_fleet(fleet, LiveSelection(), {}, time.time())
    console = terminal()
    console.print(model_table(fleet))
    console.print()
    console.print(unit_table(fleet))
    if fleet.pools:
        console.print()
        console.print(pool_table(fleet))
    if keys is not None and keys.keys:
        console.print()
        console.print(key_table(keys))
    if (fairness := fairness_line(live, keys)) is not None:
        console.print()
        console.print(fairness, soft_wrap=True)
    if decisions and fleet.decisions:
        console.print()
        console.print(decision_table(fleet.decisions, newest=decisions))
    for problem in (*problems(fleet), *trouble):
        console.print(problem, style="yellow", soft_wrap=True)
    if json_file is not None:
        write_json(json_file, {**as_dict(fleet), "fairness": fairness_dict(live, keys)})
    if any(m.state not in ("ready", "asleep") for m in fleet.models):
        raise typer.Exit(1)


def _keys(url: str) -> tuple[KeysReport | None, tuple[str, ...]]:
    """What API keys get, and why that is not known: a gateway that has enough consoles refuses."""
    try:
        keys = key_shares(url)
    except FleetUnreachable as error:
        return None, (f"what API keys get is not told: {error}",)
    if keys is not None and keys.left_out:
        return keys, (f"figures of API keys are without {keys.left_out} gateway(s), which did not tell theirs",)
    return keys, ()
