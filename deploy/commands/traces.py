"""muxfleet traces"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from deploy.commands.fitted_table import FittedTable
from deploy.commands.json_file import FiguresFile, write_json
from deploy.commands.terminal import terminal
from deploy.commands.verb import Verb
from traces.readers.entry import FILES, read_trace
from traces.stats import LengthStats, TraceStats, describe, describe_models

traces = typer.Typer(no_args_is_help=True, help="Look into request traces.")


@traces.command("stats", cls=Verb)
def stats(
    file: Annotated[Path, typer.Argument(metavar="FILE", help=f"{FILES}.")],
    json_file: FiguresFile = None,
) -> None:
    """Print rates, burstiness and lengths of a trace, whole and per model.

    Example: muxfleet traces stats trace.parquet
    """
    trace = read_trace(file)
    whole, models = describe(trace), describe_models(trace)
    table = FittedTable()
    for title in (
        "",
        "requests",
        "span",
        "rate",
        "peak",
        "CV",
        "Fano",
        "input tokens p50/p99/max",
        "output tokens p50/p99/max",
        "reuse",
    ):
        table.add_column(title, justify="right" if title else "left")
    for name, figures in [*models.items(), ("all", whole)]:
        table.add_row(name, *_cells(figures))
    terminal().print(table)
    if json_file is not None:
        write_json(json_file, {"models": {m: asdict(s) for m, s in models.items()}, "total": asdict(whole)})


def _cells(figures: TraceStats) -> tuple[str, ...]:
    arrivals = figures.arrivals
    times = ("-",) * 5
    if arrivals is not None:
        times = (
            f"{arrivals.span_s:.0f} s",
            _figure(arrivals.mean_rate_per_s, "/s"),
            _figure(arrivals.peak_to_mean, "x"),
            _figure(arrivals.cv),
            _figure(arrivals.fano),
        )
    reuse = "-" if figures.prefix_hit_ratio is None else f"{figures.prefix_hit_ratio:.1%}"
    return (str(figures.requests), *times, _lengths(figures.input_tokens), _lengths(figures.output_tokens), reuse)


def _figure(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:.2f}{unit}"


def _lengths(lengths: LengthStats) -> str:
    return f"{lengths.p50:.0f}/{lengths.p99:.0f}/{lengths.max}"
