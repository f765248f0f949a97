"""A picture of a planned fleet: nodes, their GPUs, and how full each unit is. Needs the extra `plots`."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import hsv_to_rgb
from matplotlib.patches import Patch, Rectangle

from deploy.errors import OutputNotWritable
from deploy.planning.fleet_planning import PlannedFleet
from placement.estimation.memory import resident_bytes_on
from placement.estimation.plan_estimate import FleetEstimate, UnitEstimate
from placement.plan import UnitCapacity

Colour = tuple[float, float, float]

_GOLDEN = 0.618034  # steps around the colour wheel by which neighbours differ most
_MOST_NODES = 128
_MOST_IN_LEGEND = 40


class PlanPicture:
    """One row per node. A unit's left bar is memory, bottom up: weights and KV quotas in the model's colours, free
    space white. Its right bar is load: the part of what it can carry within SLOs, red where it is asked for more.
    """

    @classmethod
    def draw(cls, file: Path, planned: PlannedFleet, found: FleetEstimate) -> None:
        """Draws the first 128 nodes. Raises OutputNotWritable."""
        nodes: dict[str, list[tuple[UnitCapacity, UnitEstimate]]] = {}
        for unit, figures in zip(planned.units, found.units, strict=True):
            nodes.setdefault(unit.node, []).append((unit, figures))
        shown = dict(list(nodes.items())[:_MOST_NODES])
        widest = max((sum(u.num_gpus for u, _ in units) for units in shown.values()), default=1)
        figure, axes = plt.subplots(figsize=(3 + 1.3 * widest, 1.2 + 1.1 * max(1, len(shown))))
        colours = _colours([m.model for m in planned.models])
        for row, (node, units) in enumerate(shown.items()):
            _draw_node(axes, -row, node, units, planned, colours)
        axes.set_xlim(-1.2, widest)
        axes.set_ylim(-len(shown) + 0.9, 1.3)
        axes.axis("off")
        left_out = f" (the first {_MOST_NODES} of {len(nodes)} nodes)" if len(nodes) > len(shown) else ""
        axes.set_title(f"{found.served_share:.1%} within SLO on {found.gpus_used} GPUs{left_out}")
        handles = [Patch(color=colours[m.model], label=m.model) for m in planned.models[:_MOST_IN_LEGEND]]
        axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
        try:
            figure.savefig(file, bbox_inches="tight", dpi=120)
        except OSError as error:
            raise OutputNotWritable(path=str(file), reason=error.strerror or str(error)) from error
        finally:
            plt.close(figure)


def _draw_node(
    axes: Axes,
    y: float,
    node: str,
    units: Sequence[tuple[UnitCapacity, UnitEstimate]],
    planned: PlannedFleet,
    colours: dict[str, Colour],
) -> None:
    axes.text(-0.1, y + 0.4, node, ha="right", va="center", fontsize=9)
    x = 0.0
    for unit, figures in units:
        width = float(unit.num_gpus)
        _draw_memory(axes, x + 0.05, y, width - 0.3, unit, planned, colours)
        load = min(1.0, 1.0 / figures.headroom) if figures.headroom > 0 else 1.0
        is_over = figures.headroom < 1
        axes.add_patch(Rectangle((x + width - 0.2, y), 0.13, 0.8 * load, color="red" if is_over else "0.5"))
        axes.add_patch(Rectangle((x + width - 0.2, y), 0.13, 0.8, fill=False, lw=0.6))
        for gpu in range(1, unit.num_gpus):
            axes.plot([x + gpu, x + gpu], [y - 0.05, y], color="black", lw=0.6)
        axes.add_patch(Rectangle((x + 0.02, y - 0.05), width - 0.06, 0.9, fill=False, lw=1.2))
        x += width


def _draw_memory(
    axes: Axes,
    x: float,
    y: float,
    width: float,
    unit: UnitCapacity,
    planned: PlannedFleet,
    colours: dict[str, Colour],
) -> None:
    models = {m.model: m for m in planned.models}
    bottom = y
    for placement in planned.plan.models_of(unit.unit_id):
        for part, alpha in (
            (resident_bytes_on(unit, models[placement.model]), 1.0),
            (placement.quota_blocks * unit.block_bytes, 0.45),
        ):
            height = 0.8 * part / unit.memory_bytes
            axes.add_patch(Rectangle((x, bottom), width, height, color=colours[placement.model], alpha=alpha, lw=0))
            bottom += height
    axes.add_patch(Rectangle((x, y), width, 0.8, fill=False, lw=0.6))


def _colours(models: Sequence[str]) -> dict[str, Colour]:
    return {
        model: tuple(hsv_to_rgb(((number * _GOLDEN) % 1.0, 0.55 + 0.2 * (number % 3), 0.85)))
        for number, model in enumerate(models)
    }
