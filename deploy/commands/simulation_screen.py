"""Shows what the simulating commands do: a progress bar and tables."""

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from deploy.commands.fitted_table import FittedTable
from deploy.commands.told_progress import ToldProgress
from deploy.simulation.fleet_outcome import FleetOutcome
from deploy.simulation.node_supply import NodeUse
from deploy.simulation.runs import HOPELESS_MISSES, Sweep
from deploy.simulation.statistics import SimulatedFigures
from deploy.simulation.streams import RequestStream

_MOST_NAMED = 5
_SHORT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgressed:
    """So many requests of a run have ended."""

    run: str
    requests: int
    ended: int
    virtual_s: float


class SimulationProgress(ToldProgress):
    """A bar over the requests of all runs that have begun, with the last one heard of and its virtual time."""

    def __init__(self, console: Console) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[virtual]}"),
            TimeElapsedColumn(),
        )
        super().__init__(*columns, console=console, transient=True)
        self._task = self.add_task("", total=None, virtual="")
        self._runs: dict[str, RunProgressed] = {}

    def hear(self, progressed: RunProgressed) -> None:
        self._runs[progressed.run] = progressed
        self.update(
            self._task,
            description=progressed.run,
            total=sum(run.requests for run in self._runs.values()),
            completed=sum(run.ended for run in self._runs.values()),
            virtual=f"{progressed.virtual_s:.0f} s of fleet time",
        )

    def line(self) -> str:
        (task,) = self.tasks
        if task.total is None:
            return "simulating"
        told = f"{task.description}, {task.fields['virtual']}"
        return f"simulating: {task.completed:.0f} of {task.total:.0f} requests ({told})"


def stream_lines(stream: RequestStream) -> Iterator[str]:
    """Says which requests come: how many, how fast, and whose models are not the fleet's."""
    requests = "1 request" if stream.count == 1 else f"{stream.count} requests"
    pace = f"{stream.rate_per_s:.2f}/s over {stream.span_s:.0f} s" if stream.span_s > 0 else "all at once"
    yield f"{requests} of {stream.name}, {pace}"
    if unknown := stream.unknown_models:
        more = f" and {len(unknown) - _MOST_NAMED} more" if len(unknown) > _MOST_NAMED else ""
        yield (
            f"the fleet has no {', '.join(unknown[:_MOST_NAMED])}{more}: requests of the trace for them go to the "
            "fleet's models, drawn by demand"
        )


def figures_table(name: str, outcome: FleetOutcome) -> FittedTable:
    table = FittedTable(title=name)
    table.add_column("model")
    times = [f"{time} {figure}" for time in ("TTFT", "TBT") for figure in ("mean", "p50", "p99")]
    titles = ("requests", "ended", *times, "TPOT mean", "TPOT p99")
    for title in (*titles, "in time", "gaps", "in time/s", "output tokens/s"):
        table.add_column(title, justify="right")
    for model, statistics in outcome.models.items():
        table.add_row(model, *_cells(statistics.figures(outcome.duration_s)))
    table.add_row("total", *_cells(outcome.total().figures(outcome.duration_s)), style="bold")
    return table


def outcome_line(outcome: FleetOutcome, wall_s: float) -> str:
    return (
        f"{outcome.duration_s:.0f} s of fleet time in {wall_s:.1f} s ({outcome.duration_s / wall_s:.0f}x), "
        f"{outcome.steps} engine steps, {outcome.events / wall_s:.0f} events/s"
    )


def node_use_line(use: NodeUse) -> str:
    lost = f"; {use.lost} were taken away, with {use.cut} requests on them" if use.lost else ""
    return (
        f"{use.node_hours:.2f} node hours ({use.gpu_hours:.2f} GPU hours, cost {use.cost:.2f}), "
        f"at most {use.most} at once, {use.changes} asked for or given back{lost}"
    )


def decisions_table(outcome: FleetOutcome) -> Table:
    """Lists what the control loop decided, the oldest first."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("time", justify="right")
    for title in ("decision", "why", "moves"):
        table.add_column(title)
    for decision in reversed(outcome.decisions):
        at = f"{outcome.decided_s(decision):.1f} s"
        table.add_row(at, decision.kind, decision.reason, ", ".join(decision.moves))
    return table


def sweep_table(name: str, sweep: Sweep) -> FittedTable:
    title = (
        f"{name}: goodput {sweep.goodput_requests_per_s:.3g} requests/s with 99 % of the requests in time "
        f"({sweep.goodput_per_s:.3g} with 99 % of each one's gaps)"
    )
    table = FittedTable(title=title)
    times = ("TTFT p50", "TTFT p99", "TBT p50", "TBT p99")
    for heading in ("requests/s", "in time", "gaps", *times, "output tokens/s"):
        table.add_column(heading, justify="right")
    for point in sweep.points:
        figures = point.outcome.total().figures(point.outcome.duration_s)
        table.add_row(
            f"{point.rate_per_s:.3g}{'*' if point.outcome.gave_up else ''}",
            f"{point.request_attainment:.1%}",
            _percent(figures.tbt_attainment),
            _ms(figures.ttft_s.p50),
            _ms(figures.ttft_s.p99),
            _ms(figures.tbt_s.p50),
            _ms(figures.tbt_s.p99),
            _number(figures.output_tokens_per_s),
        )
    return table


def sweep_lines(sweep: Sweep) -> Iterator[str]:
    """Says which rates were not run to their end, and where the goodput stands on little: nothing was too much, or all
    came too soon after each other.
    """
    if any(point.outcome.gave_up for point in sweep.points):
        yield (
            f"* stopped once {HOPELESS_MISSES:.0%} of its requests had missed their targets: its figures are of those "
            "that had come by then, and the whole run's would be worse"
        )
    goodput_per_s = max(sweep.goodput_per_s, sweep.goodput_requests_per_s)
    if sweep.goodput_requests_per_s == sweep.points[-1].rate_per_s:
        yield "no rate was too high: the goodput is at least that; try higher ones"
    for point in sweep.points:
        requests = point.outcome.total().requests
        if point.rate_per_s == goodput_per_s and requests < _SHORT_S * goodput_per_s:
            span_s = requests / goodput_per_s
            yield (
                f"{requests} requests come within {span_s:.1f} s at {goodput_per_s:.3g}/s, which may be too soon for a "
                "queue to show: ask for more of them"
            )


def _cells(figures: SimulatedFigures) -> tuple[str, ...]:
    spreads = (figures.ttft_s, figures.tbt_s)
    times = [_ms(value) for spread in spreads for value in (spread.mean, spread.p50, spread.p99)]
    return (
        str(figures.requests),
        str(figures.finished),
        *times,
        _ms(figures.tpot_s.mean),
        _ms(figures.tpot_s.p99),
        _percent(figures.request_attainment),
        _percent(figures.tbt_attainment),
        _number(figures.requests_in_time_per_s),
        _number(figures.output_tokens_per_s),
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _ms(value_s: float | None) -> str:
    if value_s is None:
        return "-"
    return f"{value_s * 1000:.0f} ms" if value_s >= 0.01 else f"{value_s * 1000:.1f} ms"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}" if value < 100 else f"{value:.0f}"
