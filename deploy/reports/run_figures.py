"""Tables and distributions that simulated and measured runs share."""

from collections.abc import Mapping
from typing import Any

from deploy.reports.figure_texts import as_ms, as_number, as_percent
from deploy.reports.page import ReportPlot, ReportTable
from deploy.reports.plots import distributions

_TIMES: Mapping[str, str] = {"ttft_s": "TTFT", "tbt_s": "TBT", "tpot_s": "TPOT"}


def figures_rows(named: Mapping[str, Mapping[str, Any]], *, first: str) -> ReportTable:
    """One row for each set of figures, as `traces.report.Figures` has them."""
    return ReportTable(
        titles=(
            *(first, "requests", "ended", "TTFT p50", "TTFT p99", "TBT p50", "TBT p99"),
            *("in time", "gaps", "in time/s", "output tokens/s"),
        ),
        rows=tuple((name, *_cells(figures)) for name, figures in named.items()),
    )


def distribution_plots(runs: Mapping[str, Mapping[str, Any]]) -> tuple[ReportPlot, ...]:
    """One plot for each time that any of the runs has points of; files of older versions have none."""
    plots = []
    for key, title in _TIMES.items():
        found = {name: points for name, run in runs.items() if (points := _points(run, key))}
        if found:
            plots.append(distributions(title, found))
    return tuple(plots)


def _points(run: Mapping[str, Any], key: str) -> tuple[list[float], list[float]] | None:
    measured = run.get("distributions") or {}
    seconds = measured.get(key)
    return (seconds, measured["percents"]) if seconds else None


def _cells(figures: Mapping[str, Any]) -> tuple[str, ...]:
    def time_of(key: str, percentile: str) -> str:
        return as_ms((figures.get(key) or {}).get(percentile))

    return (
        as_number(figures["requests"]),
        as_number(figures.get("finished")),
        *(time_of(key, percentile) for key in ("ttft_s", "tbt_s") for percentile in ("p50", "p99")),
        as_percent(figures.get("request_attainment")),
        as_percent(figures.get("tbt_attainment")),
        as_number(figures.get("requests_in_time_per_s")),
        as_number(figures.get("output_tokens_per_s")),
    )
