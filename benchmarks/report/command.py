"""What every command here has around its measuring: its options, a table, and a file of rows."""

import argparse
import json
import os
import statistics
import string
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

Row = Mapping[str, Any]


def make_parser(
    description: str | None, *, quick: str, json_help: str = "write rows and machine facts as JSON"
) -> argparse.ArgumentParser:
    """`quick` says what is left out with --quick."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help=json_help)
    parser.add_argument("--quick", action="store_true", help=quick)
    return parser


def add_clock(parser: argparse.ArgumentParser) -> None:
    """Adds what is counted, and by how many threads."""
    parser.add_argument("--threads", type=int, help="default: all cores")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="what to count; cpu: one thread")


def clock_of(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Callable[[], float]:
    """Binds this process to so many cores: before torch starts its threads, so that transformers uses as many."""
    if options.clock == "cpu" and options.threads != 1:
        parser.error("--clock cpu adds up all threads, those that only wait too: use it with --threads 1")
    if options.threads is not None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    return time.process_time if options.clock == "cpu" else time.perf_counter


class _Cells(string.Formatter):
    """Formats what a row has; a dash stands for what it has not."""

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, str]:
        try:
            return super().get_field(field_name, args, kwargs)
        except (KeyError, TypeError):
            return None, field_name

    def format_field(self, value: Any, format_spec: str) -> str:  # noqa: ANN401  anything that JSON has
        return "-" if value is None else super().format_field(value, format_spec)


def ratio_of_turns(taken: Sequence[float], before: Sequence[float]) -> dict[str, float]:
    """The ratio of each turn: its median and quartiles."""
    low, middle, high = statistics.quantiles([a / b for a, b in zip(taken, before, strict=True)], n=4)
    return {"ratio": middle, "ratio_low": low, "ratio_high": high}


def print_table(rows: Sequence[Row], columns: Mapping[str, str], *, title: str | None = None, width: int = 140) -> None:
    """`columns` say for each heading how a row is written below it, as for `str.format`: "{ttft_ms[p50]:.1f} ms"."""
    table = Table(*columns, title=title, box=None, pad_edge=False, header_style="bold", title_justify="left")
    for row in rows:
        table.add_row(*(_Cells().vformat(cell, (), row) for cell in columns.values()))
    Console(width=width).print(table)


def write_report(path: Path | None, machine: Row, rows: Sequence[Row] | Row, **setting: object) -> None:
    """Nothing without a path. Whoever is killed while writing leaves the file as it was."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    report = {"machine": machine, **setting, "rows": rows}
    unfinished.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(path)
