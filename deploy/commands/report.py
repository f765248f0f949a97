"""muxfleet report"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from deploy.commands.json_file import html_page
from deploy.commands.terminal import terminal
from deploy.errors import OptionNotUsable
from deploy.reports.run_files import read_run

WriteReport = Callable[[Path, Mapping[str, Mapping[str, Any]]], None]


def report(
    out: Annotated[Path, typer.Argument(metavar="OUT.html", help="The page to write.", callback=html_page)],
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN.json", help="Files that simulate, bench or compare wrote with --json.")
    ],
) -> None:
    """Write one self-contained page about runs of simulate, bench or compare: plots, tables, the fleet, the command.

    Example: muxfleet report out.html simulated.json measured.json
    """
    console = terminal()
    write = report_writer(option="OUT.html", path=out)
    write(out, {str(run): read_run(run) for run in runs})
    console.print(f"wrote {out} ({out.stat().st_size / 1024:.0f} KiB)")


def report_writer(*, option: str, path: Path) -> WriteReport:
    """Raises OptionNotUsable: the extra is not installed."""
    try:
        from deploy.reports.report import write_report  # matplotlib is an extra, and takes a second to import
    except ModuleNotFoundError as error:
        remedy = f"{error.name} is not installed; pip install 'muxfleet[plots]'"
        raise OptionNotUsable(option=option, value=path, remedy=remedy) from error
    return write_report
