"""muxfleet traces"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from deploy.commands.fitted_table import FittedTable
from deploy.commands.json_file import FiguresFile, write_json
from deploy.commands.terminal import terminal
from deploy.commands.verbs import Verb
from traces.readers.registry import FILES, read_trace
from traces.stats import LengthStats, TraceStats, describe, describe_models

_LEAST_SPAN_S, _LEAST_REQUESTS = 10.0, 10
_MOST_NAMED = 8

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
    console = terminal()
    console.print(table)
    if (bursts := _bursts({**models, "all": whole})) is not None:
        console.print(bursts, style="dim", soft_wrap=True)
    if json_file is not None:
        write_json(json_file, {"models": {m: asdict(s) for m, s in models.items()}, "total": asdict(whole)})


def _cells(figures: TraceStats) -> tuple[str, ...]:
    arrivals = figures.arrivals
    times = ("-",) * 5
    if arrivals is not None:
        times = (
            _span(arrivals.span_s),
            _figure(arrivals.mean_rate_per_s, "/s"),
            _figure(arrivals.peak_to_mean, "x"),
            _figure(arrivals.cv),
            _figure(arrivals.fano),
        )
    reuse = "-" if figures.prefix_hit_ratio is None else f"{figures.prefix_hit_ratio:.1%}"
    return (str(figures.requests), *times, _lengths(figures.input_tokens), _lengths(figures.output_tokens), reuse)


def _bursts(rows: Mapping[str, TraceStats]) -> str | None:
    """Says whose rate tells how closely its requests were sent, and nothing of a load."""
    names = [
        name
        for name, figures in rows.items()
        if (arrivals := figures.arrivals) is not None
        and arrivals.mean_rate_per_s is not None
        and (arrivals.span_s < _LEAST_SPAN_S or figures.requests < _LEAST_REQUESTS)
    ]
    if not names:
        return None
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return (
        f"{', '.join(names[:_MOST_NAMED])}{more}: all within {_LEAST_SPAN_S:g} s, or fewer than {_LEAST_REQUESTS} "
        "requests, so that the rate is a burst's and not a load's"
    )


def _span(span_s: float) -> str:
    return f"{span_s:.0f} s" if span_s >= _LEAST_SPAN_S or span_s == 0 else f"{span_s:.3g} s"


def _figure(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:.2f}{unit}"


def _lengths(lengths: LengthStats) -> str:
    return f"{lengths.p50:.0f}/{lengths.p99:.0f}/{lengths.max}"
