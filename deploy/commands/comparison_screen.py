"""Shows what `muxfleet compare` does: a progress bar, a table of rows, and which orderings hold."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from deploy.commands.fitted_table import FittedTable
from deploy.simulation.papers.experiment_file import ExperimentFile
from deploy.simulation.papers.measurement import CaseResult


class ComparisonProgress:
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
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
        self._task = self._progress.add_task("", total=systems, figure="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def figure(self, name: str) -> None:
        self._progress.update(self._task, figure=name)

    def run(self, about: str) -> None:
        self._progress.update(self._task, description=about)

    def system(self) -> None:
        """One more is measured."""
        self._progress.advance(self._task)


def rows_table(results: list[CaseResult]) -> FittedTable:
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


def print_verdict(console: Console, experiment: ExperimentFile, results: list[CaseResult]) -> None:
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
