"""Shows what `muxfleet compare` does: a progress bar, a table of rows, and which orderings hold."""

from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

from deploy.commands.fitted_table import FittedTable
from deploy.commands.told_progress import ToldProgress
from deploy.reports.figure_texts import as_number, as_percent
from deploy.simulation.papers.experiment_file import ExperimentFile
from deploy.simulation.papers.measurement import CaseResult, Ordering


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
        return f"{task.fields['figure']}: {task.completed:.0f} of {task.total:.0f} systems ({task.description})"

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
