"""muxfleet plan"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from deploy.commands.json_file import writable, write_json
from deploy.commands.plan_screen import (
    estimate_table,
    lengths_beyond_the_checkpoint,
    plan_dict,
    prompts_that_do_not_fit,
    served_line,
    size_line,
    steps_line,
    steps_table,
    verdict,
    why_units_are_empty,
)
from deploy.commands.planned_turns import PlannedTurn, planned_turns
from deploy.commands.size_options import AskedSize, Attainment, Budget, MostNodes, Price
from deploy.commands.terminal import terminal
from deploy.commands.told_progress import told_work
from deploy.errors import OptionNotUsable
from deploy.fleet_file.settings import FleetFile, check_sources, read_fleet_file
from deploy.fleet_file.what_if import changed_fleet, changes_nodes, told_changes
from deploy.planning.fleet_planning import (
    EnoughUnits,
    PlannedFleet,
    fewest_units,
    lay_out_fleet,
    most_served_by,
    plan_fleet,
    units_of_fleet,
    with_solver,
)
from deploy.planning.fleet_sizing import sized_fleet
from deploy.planning.incomplete_checkpoints import incomplete_checkpoints
from deploy.planning.plan_file import read_plan
from placement.estimation.memory import holds_weights
from placement.estimation.plan_estimate import FleetEstimate
from placement.plan import Plan
from placement.plan_steps import MoveCost, Step, move_cost, steps_between
from placement.scaling.elastic_pool import FleetSize
from placement.solvers.registry import SOLVERS

if TYPE_CHECKING:
    from deploy.planning import plan_picture

_MOST_CHANGES = 8


def plan(
    file: Annotated[Path, typer.Argument(metavar="FLEET", help="Fleet file.")],
    current: Annotated[
        Path | None, typer.Option(metavar="PLAN", help="Start from this plan (what --json wrote) and show the steps.")
    ] = None,
    solver: Annotated[str | None, typer.Option(help=f"{', '.join(SOLVERS)}. Default: the file's.")] = None,
    choose_meshes: Annotated[
        bool, typer.Option("--choose-meshes", help="Choose the GPUs of each unit too, instead of pools[].mesh_gpus.")
    ] = False,
    what_if: Annotated[
        str | None,
        typer.Option(metavar="CHANGES", help="nodes[.POOL]=+1, rate[.MODEL]=x2, replicas[.MODEL]=4; commas."),
    ] = None,
    attainment: Attainment = None,
    budget: Budget = None,
    price: Price = None,
    most_nodes: MostNodes = None,
    time_budget: Annotated[float, typer.Option(metavar="SECONDS", help="For the solver.", min=0.0, max=1e6)] = 30.0,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the plan as JSON.", callback=writable)
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the fleet as .png or .svg (needs muxfleet[plots]).")
    ] = None,
) -> None:
    """Print which models sit on which units or take turns there, and what they will serve. Exit code 1 if a model fits
    nowhere or would never be loaded, if its checkpoint here is not whole, or if no number of nodes is enough.

    Example: muxfleet plan examples/simulated-8gpu.yaml --solver search --what-if nodes=+1,rate.llama-8b=x2
    The cheapest nodes: muxfleet plan examples/simulated-8gpu.yaml --attainment 0.99 --price large=30,small=9
    """
    console, picture = terminal(), None if plot is None else _picture(plot)
    given = _asked(file, solver)
    fleet = supposed = _supposed(given, what_if, attainment)
    before = None if current is None else _current_plan(current, given, choose_meshes=choose_meshes)
    search = _Deadline(time_budget)
    asked = AskedSize(attainment=attainment, budget=budget, price=price, most_nodes=most_nodes)
    size = asked.found_for(fleet, console, choose_meshes=choose_meshes, is_time_up=search)
    if size is not None:
        fleet, search = sized_fleet(fleet, size), _Deadline(time_budget)
    with told_work(console, f"planning with {fleet.placement.solver}"):
        planned = _solved(fleet, before, choose_meshes, search)
        without = None if what_if is None else _solved(given, before, choose_meshes, search)
        bound_per_s = most_served_by(fleet, planned, choose_meshes=choose_meshes)
        enough = fewest_units(fleet, planned, choose_meshes=choose_meshes, is_time_up=search.is_over)
    found, turns = planned.estimate(), planned_turns(planned, fleet.gateway.hold_s)
    _show_plan(console, fleet, planned, found, turns, bound_per_s=bound_per_s, enough=enough, size=size)
    search.tell(console)
    broken = _show_broken(console, fleet)
    if without is not None:
        _show_without(console, without, _told(given, supposed))
    steps, cost = _show_steps(console, before, planned)
    if json_file is not None:
        written = plan_dict(planned, found, bound_per_s=bound_per_s, steps=steps, cost=cost, size=size)
        write_json(json_file, {**written, "would_not_load": broken, "turns": [turn.as_dict() for turn in turns]})
    if picture is not None and plot is not None:
        picture.draw(plot, planned, found)
        console.print(f"wrote {plot}")
    if planned.plan.unplaced or broken or _never_loaded(turns) or (size is not None and not _is_enough(size)):
        raise typer.Exit(1)


def _is_enough(size: FleetSize) -> bool:
    return size.is_enough and not size.left_out


def _never_loaded(turns: Sequence[PlannedTurn]) -> bool:
    return any(not turn.units for turn in turns)


def _show_plan(
    console: Console,
    fleet: FleetFile,
    planned: PlannedFleet,
    found: FleetEstimate,
    turns: Sequence[PlannedTurn],
    *,
    bound_per_s: float,
    enough: EnoughUnits | None,
    size: FleetSize | None,
) -> None:
    console.print(estimate_table(planned, found))
    if size is not None:
        console.print(size_line(size, len(planned.models)), soft_wrap=True, style=None if _is_enough(size) else "red")
    for line in verdict(found, planned, bound_per_s=bound_per_s, enough=enough):
        console.print(line, soft_wrap=True)
    for line in why_units_are_empty(found, planned):
        console.print(line, style="yellow", soft_wrap=True)
    too_long = lengths_beyond_the_checkpoint(fleet.models, planned.models)
    for line in (*prompts_that_do_not_fit(planned.models), *too_long):
        console.print(line, style="yellow", soft_wrap=True)
    for turn in turns:
        console.print(turn.told(), style="yellow" if turn.units else "red", soft_wrap=True)
    for model, reason in planned.plan.unplaced.items():
        console.print(f"not placed: {model}: {reason}", style="red", soft_wrap=True)


def _show_broken(console: Console, fleet: FleetFile) -> dict[str, str]:
    broken = incomplete_checkpoints(fleet)
    for model, reason in broken.items():
        console.print(f"would not load: {model}: {reason}", style="red", soft_wrap=True)
    return broken


def _show_without(console: Console, without: PlannedFleet, changes: str) -> None:
    console.print(f"what if: {changes}", soft_wrap=True)
    console.print(f"without: {served_line(without, without.estimate())}", soft_wrap=True)


def _asked(file: Path, solver: str | None) -> FleetFile:
    fleet = read_fleet_file(file)
    check_sources(fleet)
    return with_solver(fleet, solver)


def _supposed(fleet: FleetFile, what_if: str | None, attainment: float | None) -> FleetFile:
    """Raises OptionNotUsable."""
    if what_if is None:
        return fleet
    if attainment is not None and changes_nodes(what_if):
        remedy = "--attainment looks for the number of nodes itself; leave nodes out"
        raise OptionNotUsable(option="--what-if", value=what_if, remedy=remedy)
    return changed_fleet(fleet, what_if)


def _current_plan(file: Path, fleet: FleetFile, *, choose_meshes: bool) -> Plan:
    """Units and models may have come and gone since, but not all. Raises OptionNotUsable."""
    if choose_meshes:
        remedy = "units change with --choose-meshes; drop one"
        raise OptionNotUsable(option="--current", value=str(file), remedy=remedy)
    plan = read_plan(file, option="--current")
    units, placed = {u.unit_id for u in plan.units}, plan.placed
    for theirs, ours in ((units, {u.unit_id for u in units_of_fleet(fleet)}), (placed, {m.id for m in fleet.models})):
        if theirs and theirs.isdisjoint(ours):
            remedy = f"it is another fleet's: this one has no {min(theirs)!r}; give a plan of this fleet"
            raise OptionNotUsable(option="--current", value=str(file), remedy=remedy)
    return plan


def _told(given: FleetFile, changed: FleetFile) -> str:
    """In few words, should it be every model of a large fleet."""
    changes = list(told_changes(given, changed))
    more = f" and {len(changes) - _MOST_CHANGES} more" if len(changes) > _MOST_CHANGES else ""
    return f"{', '.join(changes[:_MOST_CHANGES]) or 'nothing changes'}{more}"


class _Deadline:
    """Tells who searches that time is up, and remembers that it did: what was found then may not be the best."""

    def __init__(self, budget_s: float) -> None:
        self._ends_s = time.monotonic() + budget_s
        self._cut_short = False

    def __call__(self) -> bool:
        is_over = self.is_over()
        self._cut_short = self._cut_short or is_over
        return is_over

    def is_over(self) -> bool:
        return time.monotonic() >= self._ends_s

    def tell(self, console: Console) -> None:
        if self._cut_short:
            said = "the search was cut short, and a better plan may be left: give it a larger --time-budget"
            console.print(said, style="yellow", soft_wrap=True)


def _solved(fleet: FleetFile, before: Plan | None, choose_meshes: bool, search: _Deadline) -> PlannedFleet:
    if choose_meshes:
        return lay_out_fleet(fleet, is_time_up=search)
    return plan_fleet(fleet, current=before, is_time_up=search)


def _show_steps(
    console: Console, before: Plan | None, planned: PlannedFleet
) -> tuple[tuple[Step, ...], MoveCost | None]:
    if before is None:
        return (), None
    units, by_name = {u.unit_id: u for u in planned.units}, {m.model: m for m in planned.models}

    def fits(unit_id: str, models: frozenset[str]) -> bool:
        """Returns whether a plan fits. What is gone from the fleet is gone from the plan too."""
        return unit_id in units and holds_weights(units[unit_id], [by_name[m] for m in models if m in by_name])

    steps = steps_between(before, planned.plan, fits=fits)
    cost = move_cost(steps, {name: m.spec.weight_bytes for name, m in by_name.items()})
    if steps:
        console.print(steps_table(steps))
    console.print(steps_line(steps, cost), soft_wrap=True)
    return steps, cost


def _picture(file: Path) -> type[plan_picture.PlanPicture]:
    """Raises OptionNotUsable: the extra is not installed, or the suffix is no picture's."""
    if file.suffix not in (".png", ".svg", ".pdf"):
        raise OptionNotUsable(option="--plot", value=file, remedy="name a .png, .svg or .pdf")
    try:
        from deploy.planning.plan_picture import PlanPicture  # matplotlib is an extra, and takes a second to import
    except ModuleNotFoundError as error:
        remedy = f"{error.name} is not installed; pip install 'muxfleet[plots]'"
        raise OptionNotUsable(option="--plot", value=file, remedy=remedy) from error
    return PlanPicture
