"""muxfleet compare"""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from deploy.commands.fitted_table import FittedTable
from deploy.commands.json_file import FiguresFile, write_json
from deploy.commands.terminal import terminal
from deploy.errors import OptionNotUsable
from deploy.fleet_file.settings import check_sources
from deploy.simulation.papers.experiment_file import ExperimentFile, read_experiment_file
from deploy.simulation.papers.measurement import CaseResult, run_case


def compare(
    file: Annotated[Path, typer.Argument(metavar="EXPERIMENT", help="Experiment file, see examples/papers.")],
    quick: Annotated[bool, typer.Option("--quick", help="Fewer requests and coarser goodputs.")] = False,
    case: Annotated[list[str] | None, typer.Option("--case", help="Only this case; may be repeated.")] = None,
    seed: Annotated[int, typer.Option(help="Of the generated requests.", min=0)] = 0,
    json_file: FiguresFile = None,
) -> None:
    """Simulate a figure of a paper, and print what was published beside it.

    Example: muxfleet compare examples/papers/duetserve-fig6.yaml --quick
    """
    console = terminal()
    experiment = _only(read_experiment_file(file), case or [])
    for chosen in experiment.cases:
        check_sources(chosen.fleet)
    console.print(f"{experiment.name}: {experiment.paper}", style="bold")
    started_s = time.perf_counter()
    results = _run(console, experiment, quick=quick, seed=seed)
    wall_s = time.perf_counter() - started_s
    console.print(_table(results))
    _print_verdict(console, experiment, results)
    console.print(f"{wall_s:.0f} s", style="dim")
    if json_file is not None:
        write_json(json_file, _as_dict(experiment, results, quick=quick, seed=seed, wall_s=wall_s))


def _only(experiment: ExperimentFile, names: list[str]) -> ExperimentFile:
    known = [case.name for case in experiment.cases]
    for name in names:
        if name not in known:
            remedy = f"no such case; known: {', '.join(repr(k) for k in known)}"
            raise OptionNotUsable(option="--case", value=repr(name), remedy=remedy)
    chosen = tuple(case for case in experiment.cases if not names or case.name in names)
    return experiment.model_copy(update={"cases": chosen})


def _run(console: Console, experiment: ExperimentFile, *, quick: bool, seed: int) -> list[CaseResult]:
    if not console.is_terminal:
        return [run_case(case, quick=quick, seed=seed, on_run=lambda text: None) for case in experiment.cases]
    with console.status(experiment.name) as status:
        return [run_case(case, quick=quick, seed=seed, on_run=status.update) for case in experiment.cases]


def _table(results: list[CaseResult]) -> FittedTable:
    table = FittedTable(keys=3)
    for title in ("case", "figure", "system"):
        table.add_column(title)
    for title in ("simulated", "published", "ratio", "absolute", "in time"):
        table.add_column(title, justify="right")
    for result in results:
        for row in result.rows:
            cells = (_number(row.simulated), _number(row.published), _number(row.ratio), _number(row.absolute))
            in_time = "-" if row.request_attainment is None else f"{row.request_attainment:.1%}"
            table.add_row(row.case, row.metric, row.system, *cells, in_time)
    return table


def _print_verdict(console: Console, experiment: ExperimentFile, results: list[CaseResult]) -> None:
    orderings = [o for result in results for o in result.orderings]
    held = sum(o.holds for o in orderings)
    console.print(f"{held} of {len(orderings)} orderings of systems are as published")
    for ordering in (o for o in orderings if not o.holds):
        verdict = "a tie here" if ordering.is_tie else "not here"
        console.print(
            f"  {verdict}: {ordering.case}, {ordering.metric}: {ordering.better} before {ordering.worse}",
            style="yellow",
        )
    for result in results:
        for system, unplaced in result.unplaced.items():
            for model, reason in unplaced.items():
                console.print(f"  {system} does not place {model}: {reason}", style="red", soft_wrap=True)
    for note in experiment.notes:
        console.print(f"  {note}", style="dim", soft_wrap=True)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _as_dict(
    experiment: ExperimentFile, results: list[CaseResult], *, quick: bool, seed: int, wall_s: float
) -> dict[str, object]:
    return {
        "experiment": experiment.name,
        "paper": experiment.paper,
        "quick": quick,
        "seed": seed,
        "wall_s": wall_s,
        "rows": [{**asdict(row), "ratio": row.ratio} for result in results for row in result.rows],
        "orderings": [asdict(o) for result in results for o in result.orderings],
        "notes": list(experiment.notes),
    }
