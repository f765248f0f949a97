"""muxfleet explain"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from deploy.commands.gateway_url import file_or_url
from deploy.commands.json_file import writable, write_json
from deploy.commands.plan_screen import headroom
from deploy.commands.table_cells import pace_in_words
from deploy.commands.terminal import terminal
from deploy.commands.told_progress import told_work
from deploy.errors import OptionNotUsable
from deploy.fleet_file.settings import check_sources, read_fleet_file
from deploy.inspection.fleet_report import explanation, fleet_report
from deploy.planning.fleet_planning import estimator_of, placement_models, plan_fleet, units_of_fleet, with_solver
from deploy.planning.plan_file import read_plan
from placement import plan_explanation as explanations
from placement.errors import ModelUnknown
from placement.plan import Plan, UnitCapacity
from placement.plan_explanation import Explanation, PlannedTargets
from placement.problem import PlacementModel
from placement.scaling.seasonal_forecast import ExpectedRate
from placement.solvers.registry import SOLVERS

_SHOWN = 12


def explain(
    fleet: Annotated[
        str,
        typer.Argument(
            metavar="FLEET", help="Fleet file, or URL or host:port of a running fleet.", callback=file_or_url
        ),
    ],
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Id of one of its models.")],
    plan: Annotated[
        Path | None, typer.Option(metavar="PLAN", help="What muxfleet plan --json wrote. Default: plan now.")
    ] = None,
    solver: Annotated[str | None, typer.Option(help=f"{', '.join(SOLVERS)}. Default: the file's.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write it as JSON.", callback=writable)
    ] = None,
) -> None:
    """Say why a model sits where it sits, and what every other unit would have given it. Of a running fleet: with the
    demand that it has now.

    Example: muxfleet explain examples/simulated-8gpu.yaml llama-8b
    """
    if plan is not None and solver is not None:
        raise OptionNotUsable(option="--solver", value=solver, remedy="--plan says where models sit already; drop one")
    for option, given in (("--plan", plan), ("--solver", solver)):
        if given is not None and "://" in fleet:
            raise OptionNotUsable(option=option, value=given, remedy="a running fleet has its own plan; leave it out")
    told = _of_running(fleet, model) if "://" in fleet else _of_file(Path(fleet), model, plan, solver)
    show(terminal(), told)
    if json_file is not None:
        write_json(json_file, asdict(told))


def _of_file(file: Path, model: str, plan: Path | None, solver: str | None) -> Explanation:
    fleet = with_solver(read_fleet_file(file), solver)
    check_sources(fleet)
    units, models = units_of_fleet(fleet), placement_models(fleet)
    with told_work(terminal(), f"planning with {fleet.placement.solver}"):
        chosen = plan_fleet(fleet).plan if plan is None else _plan_of(plan, units, models)
    return explanations.explain(model, units, models, chosen, estimator_of(fleet))


def _plan_of(file: Path, units: Sequence[UnitCapacity], models: Sequence[PlacementModel]) -> Plan:
    """Raises OptionNotUsable: it is none, or another fleet's."""
    plan = read_plan(file, option="--plan")
    strange = {u.unit_id for u in plan.units} - {u.unit_id for u in units}
    strange |= plan.placed - {m.model for m in models}
    if strange:
        remedy = f"the fleet has no {min(strange)!r}; give a plan of this fleet"
        raise OptionNotUsable(option="--plan", value=file, remedy=remedy)
    return plan


def _of_running(url: str, model: str) -> Explanation:
    told = explanation(url, model)
    if told is None:
        known = (m.model for m in fleet_report(url).models if m.problem is None and not m.is_asleep)
        raise ModelUnknown(model=model, known=tuple(sorted(known)))
    return told


def show(console: Console, told: Explanation) -> None:
    figures = told.model
    console.print(
        f"{figures.model}: {figures.rate_per_s:.2f} requests/s on {figures.replicas} "
        f"replica{'' if figures.replicas == 1 else 's'}, {figures.served_share:.1%} within SLO"
    )
    if not figures.meets_slo:
        console.print("its SLO cannot be met on any unit of this fleet, at any load", style="red")
    if told.unplaced is not None:
        console.print(f"not placed: {told.unplaced}", style="red", soft_wrap=True)
    for unit_id, wake_s in sorted(told.asleep.items()):
        console.print(f"  asleep on {unit_id}: its weights are in host memory there, {wake_s:.1f} s from ready")
    if (pace := pace_in_words(told.correction)) is not None:
        console.print(f"  wherever it runs, this model {pace}")
    if told.targets is not None:
        console.print(f"  {_targets(told.targets)}", soft_wrap=True)
    if told.forecast is not None:
        console.print(f"  {_forecast(told.forecast)}", soft_wrap=True)
    for home in told.homes:
        replica = next(r for r in home.unit.replicas if r.model == figures.model)
        beside = f"beside {', '.join(home.neighbours)}" if home.neighbours else "alone"
        limit = f"limited by {home.unit.limit}" if home.unit.headroom < 1e3 else "hardly loaded"
        console.print(
            f"  on {home.unit.unit_id}: {replica.rate_per_s:.2f} requests/s, {beside}; headroom "
            f"{headroom(home.unit.headroom)}, {limit}; alone it would be {headroom(home.alone_headroom)}",
            soft_wrap=True,
        )
        if (pace := pace_in_words(home.correction)) is not None:
            console.print(f"    this unit {pace}")
        for neighbour, part in sorted(home.loses.items()):
            console.print(f"    beside {neighbour} it was seen to lose {part:.0%} of a target more than is estimated")
        for neighbour, part in sorted(home.takes.items()):
            console.print(f"    {neighbour} was seen to lose {part:.0%} of a target more beside it than is estimated")
    if told.rejected:
        console.print(_rejections(told))


def _targets(targets: PlannedTargets) -> str:
    planned, own = (
        f"{t.ttft_s:.3g} s to the first token and {t.tbt_s * 1e3:.3g} ms between tokens"
        for t in (targets.planned, targets.own)
    )
    return f"planned for {planned}: {targets.tighter:.0%} of its requests ask for tighter targets than its own, {own}"


def _forecast(expected: ExpectedRate) -> str:
    seasons = f"{expected.seasons} season{'' if expected.seasons == 1 else 's'}"
    return (
        f"forecast: at most {expected.rate_per_s:.2f} requests/s within {expected.within_s:.0f} s, by {seasons} before"
    )


def _rejections(told: Explanation) -> Table:
    more = len(told.rejected) - _SHOWN
    caption = f"and {more} more (--json has them all)" if more > 0 else None
    table = Table(box=None, pad_edge=False, header_style="bold", title="rejected, the closest first", caption=caption)
    table.title_justify = "left"
    table.add_column("unit")
    table.add_column("loses", justify="right")
    table.add_column("because")
    for rejection in told.rejected[:_SHOWN]:
        lost = "no room" if rejection.lost_per_s is None else f"{rejection.lost_per_s:.2f}/s"
        table.add_row(rejection.unit_id, lost, rejection.reason)
    return table
