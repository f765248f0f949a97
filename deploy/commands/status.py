"""muxfleet status"""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from deploy.commands.json_file import write_json
from deploy.commands.terminal import terminal
from deploy.served_models import served_models
from deploy.unit_figures import UnitFigures, unit_figures

DEFAULT_URL = "http://127.0.0.1:8000"


def status(
    url: Annotated[str, typer.Argument(metavar="[URL]", help="A fleet's gateway.")] = DEFAULT_URL,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures as JSON.")] = None,
) -> None:
    """Print models and units of a running fleet, as its gateway sees them. Exit code 1 unless every model is ready.

    Example: muxfleet status http://127.0.0.1:8000
    """
    models = served_models(url)
    units = unit_figures(url)
    console = terminal()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("model", "status", "context"):
        table.add_column(title)
    for model in models:
        table.add_row(model.id, model.status or "-", "-" if model.max_model_len is None else str(model.max_model_len))
    console.print(table)
    console.print()
    console.print(_unit_table(units))
    if json_file is not None:
        write_json(
            json_file,
            {
                "models": [{"id": m.id, "status": m.status, "max_model_len": m.max_model_len} for m in models],
                "units": [u.as_dict() for u in units],
            },
        )
    if any(m.status != "ready" for m in models):
        raise typer.Exit(1)


def _unit_table(units: tuple[UnitFigures, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("unit", "model", "running", "waiting", "blocks used", "quota", "silent"):
        table.add_column(title)
    for unit in units:
        if not unit.models:
            table.add_row(unit.unit, "-", "-", "-", "-", "-", f"{unit.report_age_s:.1f} s")
        for model in unit.models:
            table.add_row(
                unit.unit,
                model.model,
                f"{model.running:.0f}",
                f"{model.waiting:.0f}",
                f"{model.used_blocks:.0f}",
                f"{model.quota_blocks:.0f}",
                f"{unit.report_age_s:.1f} s",
            )
    return table
