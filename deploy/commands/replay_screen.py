"""Replays a trace with a progress bar and shows the summary as a table."""

import asyncio
from collections.abc import Callable, Mapping

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

from deploy.commands.fitted_table import FittedTable
from deploy.commands.table_cells import few_requests_line
from deploy.commands.told_progress import ToldProgress
from traces.outcome import RequestOutcome
from traces.replay import replay
from traces.report import Figures, Percentiles, Summary
from traces.trace import Trace


def replay_with_progress(
    console: Console,
    trace: Trace,
    *,
    url: str,
    timeout_s: float,
    seed: int,
    api_key: str | None = None,
    vocab_sizes: Mapping[str, int] | None = None,
    on_outcome: Callable[[RequestOutcome], None] | None = None,
) -> list[RequestOutcome]:
    columns = (TextColumn("replay"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with ToldProgress(*columns, console=console) as progress:
        task = progress.add_task("replay", total=len(trace.records))
        return asyncio.run(
            replay(
                trace.records,
                url=url,
                timeout_s=timeout_s,
                api_key=api_key,
                block_tokens=trace.block_tokens,
                vocab_sizes=vocab_sizes,
                seed=seed,
                on_progress=lambda done, _total: progress.update(task, completed=done),
                on_outcome=on_outcome,
            )
        )


def show_figures(console: Console, summary: Summary) -> None:
    console.print(_summary_table(summary))
    if few := few_requests_line({model: figures.finished for model, figures in summary.models.items()}):
        console.print(few, style="dim", soft_wrap=True)


def show_trouble(console: Console, summary: Summary, outcomes: list[RequestOutcome]) -> None:
    """Shows what did not end well, and the first errors, if anything did not."""
    if trouble := _trouble_line(summary):
        console.print(trouble, style="red")
        for line in _first_errors(outcomes):
            console.print(f"  {line}", soft_wrap=True)


def _summary_table(summary: Summary) -> FittedTable:
    table = FittedTable()
    table.add_column("model")
    times = ("TTFT p50", "TTFT p99", "TBT p50", "TBT p99")
    for title in ("requests", "lost", *times, "in time", "gaps", "output tokens/s"):
        table.add_column(title, justify="right")
    for name, figures in summary.rows():
        table.add_row(name, *_cells(figures), style="bold" if name == "total" else None)
    return table


def _trouble_line(summary: Summary) -> str | None:
    total = summary.total
    counts = {"lost": total.lost, "failed": total.failed, "rejected": total.rejected}
    parts = [f"{count} {name}" for name, count in counts.items() if count]
    return ", ".join(parts) or None


def _first_errors(outcomes: list[RequestOutcome], limit: int = 3) -> list[str]:
    return [f"request {o.index} ({o.model}): {o.error}" for o in outcomes if o.error is not None][:limit]


def _cells(figures: Figures) -> tuple[str, ...]:
    rate = "-" if figures.output_tokens_per_s is None else f"{figures.output_tokens_per_s:.1f}"
    return (
        str(figures.requests),
        str(figures.lost),
        *_milliseconds(figures.ttft_s),
        *_milliseconds(figures.tbt_s),
        _percent(figures.request_attainment),
        _percent(figures.tbt_attainment),
        rate,
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _milliseconds(percentiles: Percentiles) -> tuple[str, str]:
    p50, p99 = ("-" if v is None else f"{v * 1000:.0f} ms" for v in (percentiles.p50, percentiles.p99))
    return p50, p99
