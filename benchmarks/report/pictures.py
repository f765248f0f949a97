"""Pictures of results. Figures are matplotlib's, which is imported only where one is drawn."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
Draw = Callable[[Any, Sequence[Row]], None]
_DEFAULT_POLICY = "mux"


def draw_picture(path: Path, rows: Sequence[Row], draw: Draw, *, title: str = "") -> None:
    """`draw` fills the figure with the rows and gives it a size, if it needs another."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SystemExit("--plot needs matplotlib: pip install -c constraints.txt 'muxfleet[plots]'") from None
    figure = Figure(figsize=(10, 4), layout="constrained")
    draw(figure, rows)
    if title:
        figure.suptitle(title, fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)


def draw_overload(figure: Any, rows: Sequence[Row]) -> None:  # noqa: ANN401  matplotlib is optional
    """Goodput against load: one panel per workload and way in, one line per policy."""
    panels = list(dict.fromkeys((row["workload"], row["through"]) for row in rows))
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure.set_size_inches(4.4 * columns, 3.2 * lines)
    axes = list(figure.subplots(lines, columns, squeeze=False).flat)
    for way, panel in zip(panels, axes, strict=False):
        panel.set_title(", ".join(way), fontsize="small")
        for number, policy in enumerate(dict.fromkeys(row["policy"] for row in rows)):
            same = [row for row in rows if (row["workload"], row["through"], row["policy"]) == (*way, policy)]
            points = sorted((row["load"], row["goodput_per_s"]) for row in same)
            style = {"color": "black", "linewidth": 2.5} if policy == _DEFAULT_POLICY else {"color": f"C{number}"}
            panel.plot([x for x, _ in points], [y for _, y in points], marker=".", label=policy, **style)
        panel.set(xlabel="load, in capacities", ylabel="requests in time / s")
        panel.set_ylim(bottom=0)
    for unused in axes[len(panels) :]:
        unused.set_visible(False)
    figure.axes[0].legend(fontsize="x-small")


def draw_pool_use(figure: Any, rows: Sequence[Row]) -> None:  # noqa: ANN401  matplotlib is optional
    """One panel per scenario and variant; lines are used blocks, dashed ones quotas."""
    scenarios = list(dict.fromkeys(row["scenario"] for row in rows))
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    figure.set_size_inches(4.2 * len(variants), 2.8 * len(scenarios))
    panels = figure.subplots(len(scenarios), len(variants), sharex="row", sharey="row", squeeze=False)
    for row in rows:
        axes = panels[scenarios.index(row["scenario"])][variants.index(row["variant"])]
        axes.set_title(f"{row['scenario']}: {row['variant']}", fontsize="small")
        points = row["pool_use"]
        times_s = [point["at_s"] for point in points]
        for number, model in enumerate(sorted({name for point in points for name in point if name != "at_s"})):
            used, quota = ([point[model][i] for point in points] for i in (0, 1))
            axes.plot(times_s, used, color=f"C{number}", linewidth=1, label=model)
            axes.plot(times_s, quota, color=f"C{number}", linewidth=1, linestyle="--")
    for axes in panels[-1]:
        axes.set_xlabel("s")
    for line in panels:
        line[0].set_ylabel("token blocks (dashed: quota)")
    panels[0][0].legend(fontsize="small")
