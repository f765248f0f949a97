"""How much of the block pool each model used over time, beside its quota."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def draw_pool_use(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """One panel per scenario and variant; lines are used blocks, dashed ones quotas."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SystemExit("--plot needs matplotlib: pip install -c constraints.txt 'muxfleet[plots]'") from None
    scenarios = list(dict.fromkeys(row["scenario"] for row in rows))
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    figure = Figure(figsize=(4.2 * len(variants), 2.8 * len(scenarios)), layout="constrained")
    panels = figure.subplots(len(scenarios), len(variants), sharex="row", sharey="row", squeeze=False)
    for row in rows:
        axes = panels[scenarios.index(row["scenario"])][variants.index(row["variant"])]
        axes.set_title(f"{row['scenario']}: {row['variant']}", fontsize="small")
        points = row["pool_use"]
        times_s = [point["at_s"] for point in points]
        models = sorted({name for point in points for name in point if name != "at_s"})
        for number, model in enumerate(models):
            used, quota = ([point[model][i] for point in points] for i in (0, 1))
            axes.plot(times_s, used, color=f"C{number}", linewidth=1, label=model)
            axes.plot(times_s, quota, color=f"C{number}", linewidth=1, linestyle="--")
    for axes in panels[-1]:
        axes.set_xlabel("s")
    for line in panels:
        line[0].set_ylabel("token blocks (dashed: quota)")
    panels[0][0].legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)
