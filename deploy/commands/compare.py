"""muxfleet compare"""

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

from deploy.commands.fitted_table import FittedTable
from deploy.commands.json_file import FiguresFile, given_command, html_page, write_json
from deploy.commands.report import report_writer
from deploy.commands.terminal import terminal
from deploy.commands.told_progress import ToldProgress
from deploy.errors import OptionNotUsable
from deploy.fleet_file.settings import check_sources, read_text
from deploy.reports.figure_texts import as_number, as_percent
from deploy.simulation.papers.experiment_file import ExperimentFile, read_experiment_file
from deploy.simulation.papers.measurement import CaseResult, Ordering, RunningCase, orderings_of_cases
from deploy.simulation.workers import Workers


class ComparisonProgress(ToldProgress):
    """A bar over the systems of all cases, with the run that is under way."""

    def __init__(self, console: Console, systems: int) -> None:
        columns = (
            TextColumn("{task.fields[figure]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("systems"),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
        )
        super().__init__(*columns, console=console, transient=True)
        self._task = self.add_task("", total=systems, figure="")

    def figure(self, name: str) -> None:
        self.update(self._task, figure=name)

    def run(self, about: str) -> None:
        self.update(self._task, description=about)

    def line(self) -> str:
        (task,) = self.tasks
        of_it = f" ({task.description})" if task.description else ""  # nothing yet while a system's plan is made
        return f"{task.fields['figure']}: {task.completed:.0f} of {task.total:.0f} systems{of_it}"

    def system(self) -> None:
        """One more is measured."""
        self.advance(self._task)


def rows_table(results: list[CaseResult]) -> FittedTable:
    table = FittedTable(keys=3)
    for title in ("case", "figure", "system"):
        table.add_column(title)
    for title in ("simulated", "published", "ratio", "absolute", "in time"):
        table.add_column(title, justify="right")
    for result in results:
        for row in result.rows:
            cells = (as_number(figure) for figure in (row.simulated, row.published, row.ratio, row.absolute))
            table.add_row(row.case, row.metric, row.system, *cells, as_percent(row.request_attainment))
    return table


def print_verdict(
    console: Console, experiment: ExperimentFile, results: list[CaseResult], orderings: Sequence[Ordering]
) -> None:
    held = sum(o.holds for o in orderings)
    console.print(f"{held} of {len(orderings)} orderings are as published")
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


_FOLDER = Path("examples/papers")


def compare(
    context: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="EXPERIMENT", help="Experiment file, see examples/papers; with --all their folder."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All figures of a folder. Default: examples/papers.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer requests and coarser goodputs.")] = False,
    case: Annotated[list[str] | None, typer.Option("--case", help="Only this case; may be repeated.")] = None,
    seed: Annotated[int, typer.Option(help="Of the generated requests.", min=0)] = 0,
    report: Annotated[
        Path | None,
        typer.Option(metavar="OUT.html", help="Write a page with plots (needs muxfleet[plots]).", callback=html_page),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Systems simulated at once, each in a process.", min=1, max=1024)] = 1,
    json_file: FiguresFile = None,
) -> None:
    """Simulate a figure of a paper, and print what was published beside it.

    Example: muxfleet compare examples/papers/duetserve-fig6.yaml --quick --report fig6.html
    """
    console = terminal()
    writer = None if report is None else report_writer(option="--report", path=report)
    experiments = {path: _only(read_experiment_file(path), case or []) for path in _files(file, every, case)}
    for chosen in (c for experiment in experiments.values() for c in experiment.cases):
        check_sources(chosen.fleet)
    options = _Options(quick=quick, seed=seed)
    systems = sum(len(c.systems) for experiment in experiments.values() for c in experiment.cases)
    figures: list[dict[str, object]] = []
    try:
        with ComparisonProgress(console, systems) as progress, Workers(jobs, progress.run) as workers:
            running = {
                path: [RunningCase(c, quick=quick, seed=seed, workers=workers) for c in experiment.cases]
                for path, experiment in experiments.items()
            }
            for path, figure in experiments.items():
                figures.append(_figure(console, path, figure, options, progress, running[path]))
    finally:  # all figures take an hour: a run that is cut off leaves those that it has
        if figures:
            found = {"command": given_command(context), **({"figures": figures} if every else figures[0])}
            if json_file is not None:
                write_json(json_file, found)
            if writer is not None and report is not None:
                writer(report, {"--report": found})
                console.print(f"wrote {report}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    quick: bool
    seed: int


def _files(file: Path | None, every: bool, cases: list[str] | None) -> list[Path]:
    """Raises OptionNotUsable."""
    if not every:
        if file is None:
            remedy = f"name an experiment file, or take --all figures of {_FOLDER}"
            raise OptionNotUsable(option="EXPERIMENT", value="(none)", remedy=remedy)
        if os.path.isdir(file):
            raise OptionNotUsable(
                option="EXPERIMENT", value=file, remedy="is a folder: add --all, or name a file of it"
            )
        return [file]
    folder = file or _FOLDER
    if not os.path.isdir(folder):
        remedy = "is no folder; name that of the experiment files, or leave out --all"
        raise OptionNotUsable(option="--all", value=folder, remedy=remedy)
    found = sorted(folder.glob("*.yaml"))
    if not found:
        remedy = "holds no *.yaml; name the folder of the experiment files, as examples/papers of the sources"
        raise OptionNotUsable(option="--all", value=folder, remedy=remedy)
    if cases:
        raise OptionNotUsable(option="--case", value=cases[0], remedy="goes with one experiment file, not with --all")
    return found


def _only(experiment: ExperimentFile, names: list[str]) -> ExperimentFile:
    known = [case.name for case in experiment.cases]
    for name in names:
        if name not in known:
            remedy = f"no such case; known: {', '.join(repr(k) for k in known)}"
            raise OptionNotUsable(option="--case", value=repr(name), remedy=remedy)
    chosen = tuple(case for case in experiment.cases if not names or case.name in names)
    return experiment.model_copy(update={"cases": chosen})


def _figure(
    console: Console,
    path: Path,
    experiment: ExperimentFile,
    options: _Options,
    progress: ComparisonProgress,
    running: list[RunningCase],
) -> dict[str, object]:
    """Awaits and shows one figure; what it found, for JSON."""
    started_s = time.perf_counter()
    progress.figure(experiment.name)
    results = [case.result(progress.system) for case in running]
    wall_s = time.perf_counter() - started_s
    console.print(f"{experiment.name}: {experiment.paper}", style="bold")
    console.print(rows_table(results))
    orderings = [*(o for result in results for o in result.orderings), *orderings_of_cases(experiment, results)]
    print_verdict(console, experiment, results, orderings)
    console.print(f"{wall_s:.0f} s", style="dim")
    return {
        "experiment": experiment.name,
        "paper": experiment.paper,
        "about": experiment.about,
        "source": read_text(path),
        "quick": options.quick,
        "seed": options.seed,
        "wall_s": wall_s,
        "rows": [{**asdict(row), "ratio": row.ratio} for result in results for row in result.rows],
        "orderings": [asdict(o) for o in orderings],
        "notes": list(experiment.notes),
    }
