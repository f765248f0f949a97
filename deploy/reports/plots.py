"""Draws the plots of reports as SVG inside the page. Needs the extra `plots`."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from io import BytesIO

import matplotlib as mpl
from matplotlib.figure import Figure

from deploy.reports.page import ReportPlot

_BLUE, _ORANGE = "#3b6ea5", "#d98b2b"
_BAR = 0.38


def bars(title: str, systems: Sequence[str], simulated: Sequence[float], published: Sequence[float]) -> ReportPlot:
    """Draws one row of bars for each system; a value that is not there is NaN."""
    figure = Figure(figsize=(6.0, 1.1 + 0.5 * len(systems)))
    axis = figure.add_subplot()
    rows = range(len(systems))
    axis.barh([r - _BAR / 2 for r in rows], simulated, height=_BAR, color=_BLUE, label="simulated")
    axis.barh([r + _BAR / 2 for r in rows], published, height=_BAR, color=_ORANGE, label="published")
    axis.set_yticks(list(rows), labels=list(systems))
    axis.invert_yaxis()
    axis.set_title(title, fontsize=10)
    axis.legend(fontsize=8)
    axis.grid(axis="x", alpha=0.3)
    return _plot(figure, f"{title}: bars of {', '.join(systems)}, simulated beside published")


def distributions(title: str, times_s: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> ReportPlot:
    """Draws, by run, the share of all that is no longer than a time: seconds, and percents."""
    figure = Figure(figsize=(6.0, 3.4))
    axis = figure.add_subplot()
    for name, (seconds, percents) in times_s.items():
        axis.plot([1000 * s for s in seconds], percents, label=name)
    axis.set(xscale="log", xlabel=f"{title} (ms)", ylabel="no longer (%)", ylim=(0, 101))
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    return _plot(figure, f"distribution of {title} of {', '.join(times_s)}")


def attainment(runs: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> ReportPlot:
    """Draws, by run, the share of requests in time against the rate."""
    figure = Figure(figsize=(6.0, 3.4))
    axis = figure.add_subplot()
    for name, (rates_per_s, shares) in runs.items():
        axis.plot(rates_per_s, [100 * share for share in shares], marker="o", label=name)
    axis.axhline(99, color="grey", linewidth=0.8)
    axis.set(xlabel="requests per second", ylabel="requests in time (%)")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    return _plot(figure, f"requests in time against the rate of {', '.join(runs)}")


def _plot(figure: Figure, about: str) -> ReportPlot:
    drawn = BytesIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "report"}):
        figure.savefig(drawn, format="svg", metadata=nothing, bbox_inches="tight")
    return ReportPlot(data_uri=f"data:image/svg+xml;base64,{b64encode(drawn.getvalue()).decode()}", about=about)
