"""muxfleet status"""

import time
from pathlib import Path
from typing import Annotated

import typer

from deploy.commands.fairness_tables import fairness_dict, fairness_line, key_table
from deploy.commands.fleet_tables import as_dict, decision_table, model_table, pool_table, problems, unit_table
from deploy.commands.json_file import FiguresFile, write_json
from deploy.commands.known_tables import known_age, known_dict, known_model_table, known_unit_table
from deploy.commands.terminal import terminal
from deploy.errors import ControlLoopUnreachable, FleetUnreachable
from deploy.inspection.fleet_report import fleet_of_gateway, fleet_report
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
    asleep. Where the control loop does not answer: what a gateway knows, and exit code 1.

    Example: muxfleet status http://127.0.0.1:8000
    """
    try:
        fleet = fleet_report(url)
    except ControlLoopUnreachable as error:
        _tell_known(url, error, json_file)
        raise typer.Exit(1) from None
    keys, trouble = _keys(url)
    live = live_fleet(fleet, LiveSelection(), {}, time.time())
    console = terminal()
    console.print(model_table(fleet))
    console.print()
    console.print(unit_table(fleet.units))
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


def _tell_known(url: str, lack: ControlLoopUnreachable, json_file: Path | None) -> None:
    """Raises `lack` where the gateway knows nothing either, or is of a release that does not tell."""
    try:
        known = fleet_of_gateway(url)
    except FleetUnreachable:
        raise lack from None
    console = terminal()
    console.print(f"{lack}\n{known_age(known)}\n", style="yellow", soft_wrap=True)
    console.print(known_model_table(known))
    console.print()
    console.print(known_unit_table(known))
    if json_file is not None:
        write_json(json_file, {"control_loop": str(lack), **known_dict(known)})


def _keys(url: str) -> tuple[KeysReport | None, tuple[str, ...]]:
    """What API keys get, and why that is not known: a gateway that has enough consoles refuses."""
    try:
        keys = key_shares(url)
    except FleetUnreachable as error:
        return None, (f"what API keys get is not told: {error}",)
    if keys is not None and keys.left_out:
        return keys, (f"figures of API keys are without {keys.left_out} gateway(s), which did not tell theirs",)
    return keys, ()
