"""The section of a report about `muxfleet bench`."""

from collections.abc import Mapping
from typing import Any

from deploy.reports.page import ReportSection
from deploy.reports.run_figures import distribution_plots, figures_rows


def bench_section(run: Mapping[str, Any]) -> ReportSection:
    """`run` is what the command wrote."""
    return ReportSection(
        title=f"Measured: {run.get('url') or 'an endpoint'}",
        command=run.get("command"),
        texts=(f"Requests of {run.get('trace', 'a trace')}. Times are real, as the client saw them.",),
        plots=distribution_plots({"all models": run}),
        tables=(figures_rows({**run["models"], "total": run["total"]}, first="model"),),
    )
