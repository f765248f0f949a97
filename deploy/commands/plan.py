"""muxfleet plan"""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from deploy.commands.json_file import write_json
from deploy.commands.terminal import terminal
from deploy.planning import PlannedFleet, plan_fleet
from deploy.settings import check_sources, read_fleet_file
from placement.plan import ModelPlacement, UnitCapacity
from placement.solvers.base import PlacementModel


def plan(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Fleet file.")],
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the plan as JSON.")] = None,
) -> None:
    """Print which models would sit on which units, with their quotas. Exit code 1 if a model fits nowhere.

    Example: muxfleet plan examples/demo.yaml
    """
    fleet = read_fleet_file(file)
    check_sources(fleet)
    planned = plan_fleet(fleet)
    console = terminal()
    console.print(_table(planned))
    for model, reason in planned.plan.unplaced.items():
        console.print(f"not placed: {model}: {reason}", style="red", soft_wrap=True)
    if json_file is not None:
        write_json(json_file, _as_dict(planned))
    if planned.plan.unplaced:
        raise typer.Exit(1)


def _table(planned: PlannedFleet) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("unit", "model", "quota", "of the pool", "KV tokens", "weights"):
        table.add_column(title, justify="left" if title in ("unit", "model") else "right")
    models = {m.model: m for m in planned.models}
    for unit in planned.units:
        placements = planned.plan.models_of(unit.unit_id)
        if not placements:
            table.add_row(unit.unit_id, "-", "-", "-", "-", "-")
        for placement in placements:
            table.add_row(unit.unit_id, placement.model, *_cells(unit, placement, models[placement.model]))
    return table


def _cells(unit: UnitCapacity, placement: ModelPlacement, model: PlacementModel) -> tuple[str, ...]:
    tokens = placement.quota_blocks * unit.block_bytes // model.spec.kv_bytes_per_token
    return (
        f"{placement.quota_blocks} blocks",
        f"{placement.quota_blocks / unit.total_blocks:.1%}",
        f"{tokens}",
        f"{model.spec.weight_bytes / 2**20:.1f} MiB",
    )


def _as_dict(planned: PlannedFleet) -> dict[str, object]:
    return {
        "units": [
            {
                "unit": unit.unit_id,
                "total_blocks": unit.total_blocks,
                "models": {p.model: p.quota_blocks for p in planned.plan.models_of(unit.unit_id)},
            }
            for unit in planned.units
        ],
        "unplaced": dict(planned.plan.unplaced),
    }
