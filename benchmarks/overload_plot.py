"""Goodput against load: one panel per workload and way in, one line per policy."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_DEFAULT_POLICY = "mux"


def draw_overload(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SystemExit("--plot needs matplotlib: pip install -c constraints.txt 'muxfleet[plots]'") from None
    panels = list(dict.fromkeys((row["workload"], row["through"]) for row in rows))
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(4.4 * columns, 3.2 * lines), layout="constrained")
    axes = list(figure.subplots(lines, columns, squeeze=False).flat)
    for (workload, through), panel in zip(panels, axes, strict=False):
        panel.set_title(f"{workload}, {through}", fontsize="small")
        for number, policy in enumerate(policies):
            points = sorted(
                (row["load"], row["goodput_per_s"])
                for row in rows
                if (row["workload"], row["through"], row["policy"]) == (workload, through, policy)
            )
            is_default = policy == _DEFAULT_POLICY
            panel.plot(
                [load for load, _ in points],
                [goodput for _, goodput in points],
                color="black" if is_default else f"C{number}",
                linewidth=2.5 if is_default else 1.2,
                marker=".",
                label=policy,
            )
        panel.set_xlabel("load, in capacities")
        panel.set_ylabel("requests in time / s")
        panel.set_ylim(bottom=0)
    for unused in axes[len(panels) :]:
        unused.set_visible(False)
    figure.axes[0].legend(fontsize="x-small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
