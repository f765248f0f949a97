"""What every script of this folder does around its measuring: options, its file, errors, pictures and the exit code."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from gpu.charts import draw_report
from gpu.kept_rows import KeptRows
from report.command import make_parser as report_parser
from report.pictures import Draw

from pdmux_actor.errors import DeviceUnavailable

Measure = Callable[[argparse.Namespace, KeptRows], None]
Show = Callable[[KeptRows], None]


def make_parser(description: str | None, *, quick: str, limit_s: float = 540.0) -> argparse.ArgumentParser:
    """`quick` says what is left out with --quick."""
    parser = report_parser(description, quick=quick, json_help="written after every row")
    parser.add_argument("--resume", action="store_true", help="run only what FILE does not hold yet")
    parser.add_argument("--limit-s", type=float, default=limit_s, help="begin no row later (default: %(default).0f)")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw FILE afterwards")
    parser.add_argument("--replot", action="store_true", help="measure nothing: draw what FILE holds")
    return parser


def run_script(parser: argparse.ArgumentParser, key: Sequence[str], measure: Measure, show: Show, draw: Draw) -> None:
    """Ends the program with code 1 if something failed; what was measured is shown, kept and drawn all the same. `key`
    tells rows apart.
    """
    options = parser.parse_args()
    if (options.plot or options.resume) and options.json is None:
        parser.error("--plot and --resume need --json FILE: it is what they read")
    if options.replot and (options.plot is None or not options.json.exists()):
        parser.error("--replot needs --plot PNG and an existing --json FILE")
    kept = KeptRows(options.json, key, resume=options.resume, limit_s=options.limit_s)
    if not options.replot:
        try:
            measure(options, kept)
        except DeviceUnavailable as error:
            sys.exit(str(error))
        show(kept)
    if options.plot:
        draw_report(options.json, options.plot, draw)
    if kept.failures:
        sys.exit("\n".join(f"{name}: {why}" for name, why in kept.failures.items()))
