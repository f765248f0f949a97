"""muxfleet status"""

import time
from pathlib import Path
from typing import Annotated

import typer

from deploy.commands.fitted_table import FittedTable
from deploy.commands.fleet_tables import (
    as_dict,
    context_cell,
    decision_table,
    listed,
    model_table,
    pool_table,
    problems,
    short_names,
    unit_dict,
    unit_table,
)
from deploy.commands.gateway_url import DEFAULT_URL, GatewayUrl
from deploy.commands.json_file import FiguresFile, write_json
from deploy.commands.table_cells import fairness_dict, fairness_line, fitted, key_table
from deploy.commands.terminal import terminal
from deploy.control.fleet_status import ModelState, UnitStatus
from deploy.errors import ControlLoopUnreachable, FleetUnreachable
from deploy.inspection.fleet_report import fleet_of_gateway, fleet_report
from deploy.inspection.live_events import key_shares
from deploy.inspection.live_fleet import LiveSelection
from deploy.inspection.live_picture import live_fleet
from pdmux_actor.lease import ModelPhase
from router.access.key_figures import KeysReport
from router.view import KnownFleet


def status(
    url: GatewayUrl = DEFAULT_URL,
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


def known_age(known: KnownFleet) -> str:
    return f"what a gateway was told of the fleet {known.age_s:.0f} s ago, without plan, demand and decisions:"


def known_model_table(known: KnownFleet) -> FittedTable:
    names = short_names([u.report.unit_id for u in known.units])
    table = fitted("model", "status", "context", "on", "asleep on")
    for model in _models(known):
        holders = [
            names[u.report.unit_id]
            for u in known.units
            if any(s.model == model.model and s.phase is not ModelPhase.ASLEEP for s in u.report.models)
        ]
        context = context_cell(model.model, [u.report for u in known.units])
        asleep_on = listed([names[unit_id] for unit_id in model.asleep_on])
        table.add_row(model.model, model.state, context, listed(holders), asleep_on)
    return table


def known_unit_table(known: KnownFleet) -> FittedTable:
    return unit_table(_units(known))


def known_dict(known: KnownFleet) -> dict[str, object]:
    """Returns it as plain data for scripts, with the keys of a status where it has the same."""
    models = [{"id": m.model, "status": m.state, "asleep_on": list(m.asleep_on)} for m in _models(known)]
    return {"told_s_ago": known.age_s, "models": models, "units": [unit_dict(u) for u in _units(known)]}


def _models(known: KnownFleet) -> tuple[ModelState, ...]:
    return tuple(_model(known, card.model, can_wake=card.can_wake) for card in known.models)


def _model(known: KnownFleet, model: str, *, can_wake: bool) -> ModelState:
    told = [(u.report.unit_id, s.phase) for u in known.units for s in u.report.models if s.model == model]
    phases = tuple(phase for _, phase in told if phase is not ModelPhase.ASLEEP)
    return ModelState(
        model=model,
        phases=phases,
        planned_units=(),
        problem=None,
        is_asleep=can_wake and not phases,
        asleep_on=tuple(unit_id for unit_id, phase in told if phase is ModelPhase.ASLEEP),
    )


def _units(known: KnownFleet) -> tuple[UnitStatus, ...]:
    return tuple(UnitStatus(report=u.report, silent_s=u.age_s + known.age_s) for u in known.units)
