"""Writes the page about runs. Needs the extra `plots`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy.errors import OptionNotUsable, OutputNotWritable
from deploy.reports.compared_figures import figure_sections
from deploy.reports.page import ReportSection, page_html
from deploy.reports.run_figures import distribution_plots, figures_rows
from deploy.reports.run_files import NO_RUN
from deploy.reports.simulated_runs import simulation_section


def write_report(path: Path, runs: Mapping[str, Mapping[str, Any]]) -> None:
    """`runs` is by the name of their file. Raises OutputNotWritable and OptionNotUsable: one is no run."""
    sections: list[ReportSection] = []
    for name, run in runs.items():
        try:
            found = _sections(run)
            page_html(name, found)  # before the page is: what a foreign file names may be no text
            sections += found
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise OptionNotUsable(option="RUN.json", value=name, remedy=NO_RUN) from error
    title = sections[0].title if len(sections) == 1 else f"muxfleet: {len(sections)} runs"
    try:
        path.write_text(page_html(title, sections), encoding="utf-8")
    except OSError as error:
        raise OutputNotWritable(path=str(path), reason=error.strerror or str(error)) from error


def _sections(run: Mapping[str, Any]) -> Sequence[ReportSection]:
    if "deployments" in run:
        return (simulation_section(run),)
    return figure_sections(run) if "orderings" in run or "figures" in run else (_bench_section(run),)


def _bench_section(run: Mapping[str, Any]) -> ReportSection:
    """What `muxfleet bench` wrote."""
    return ReportSection(
        title=f"Measured: {run.get('url') or 'an endpoint'}",
        command=run.get("command"),
        texts=(f"Requests of {run.get('trace', 'a trace')}. Times are real, as the client saw them.",),
        plots=distribution_plots({"all models": run}),
        tables=(figures_rows({**run["models"], "total": run["total"]}, first="model"),),
    )
