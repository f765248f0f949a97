"""muxfleet drain"""

import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

from deploy.commands.joined_fleet import FleetName, PlaceName, joined_fleet
from deploy.commands.json_file import FiguresFile, write_json
from deploy.commands.terminal import terminal
from deploy.commands.told_progress import ToldProgress
from deploy.control.cordons import Cordon
from deploy.control.fleet_status import FleetStatus
from deploy.errors import DrainRefused, DrainTimedOut, FleetUnreachable
from deploy.inspection.fleet_places import Place, find_place, units_at

if TYPE_CHECKING:
    from deploy.serve.controller_calls import ControllerCalls

_POLL_S = 0.5
_GONE_S = 20.0  # a control loop that starts again hears of all units within seconds


class Drain:
    """Counts what is left on the units of a place, by the last word of each, also of one that is silent."""

    def __init__(self, place: Place, fleet: FleetStatus, now_s: float) -> None:
        self._place = place
        self._left = {u.report.unit_id: u.on_device for u in units_at(fleet, place)}
        self._told_s = dict.fromkeys(self._left, now_s)
        self.units = tuple(self._left)
        self.models = tuple(sorted({m for models in self._left.values() for m in models}))
        self.replicas = len(self.left())

    def hear(self, fleet: FleetStatus, now_s: float) -> None:
        for unit in units_at(fleet, self._place):
            self._left[unit.report.unit_id] = unit.on_device
            self._told_s[unit.report.unit_id] = now_s
        for unit_id, told_s in self._told_s.items():
            if now_s - told_s > _GONE_S:
                self._left[unit_id] = ()

    def left(self) -> tuple[str, ...]:
        return tuple(f"{model} on {unit_id}" for unit_id, models in self._left.items() for model in models)


def drain(
    place: PlaceName,
    timeout: Annotated[float, typer.Option(help="Seconds until all models must have left.", min=1, max=1e6)] = 600.0,
    force: Annotated[
        bool, typer.Option("--force", help="Also models that no other unit can hold: nobody serves them then.")
    ] = False,
    json_file: FiguresFile = None,
    fleet: FleetName = None,
) -> None:
    """Move all models away from a unit or a node, and place nothing new there. A model is ready at its new place before
    it leaves; streams finish or go on elsewhere. Refused when the rest of the fleet cannot hold the models.

    Example: muxfleet drain 10.0.3.7 --timeout 300
    """
    console = terminal()
    began_s = time.monotonic()
    with joined_fleet(fleet) as controller:
        status = controller.status()
        scope, name = found = find_place(status, place)
        going = Drain(found, status, time.monotonic())
        if homeless := controller.cordon(Cordon(scope=scope, name=name, drains=True, is_forced=force)):
            raise DrainRefused(place=f"{scope} {name}", homeless=homeless)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with ToldProgress(*columns, console=console, transient=True) as progress:
            task = progress.add_task(f"draining {scope} {name}", total=going.replicas)
            while left := _left(going, controller):
                progress.update(task, completed=max(0, going.replicas - len(left)))
                if time.monotonic() - began_s > timeout:
                    raise DrainTimedOut(place=f"{scope} {name}", timeout_s=timeout, left=left)
                time.sleep(_POLL_S)
    took_s = time.monotonic() - began_s
    units, models = _counted(len(going.units), "unit"), _counted(len(going.models), "model")
    told = f"{_counted(going.replicas, 'replica')} of {models} left {units}"
    console.print(f"{scope} {name}: drained in {took_s:.1f} s: {told}", soft_wrap=True)
    if json_file is not None:
        figures = {"scope": str(scope), "name": name, "seconds": took_s, "units": going.units, "models": going.models}
        write_json(json_file, figures)


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _left(going: Drain, controller: "ControllerCalls") -> tuple[str, ...]:
    """A control loop that is just replaced tells nothing: then as before, until the time is over."""
    try:
        going.hear(controller.status(), time.monotonic())
    except FleetUnreachable:
        return going.left() or ("the control loop does not answer",)
    return going.left()
