"""What every script of this folder does around its measuring: options, its file, errors, pictures and the exit code."""

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from report.command import Row, write_report
from report.command import make_parser as report_parser
from report.machine_facts import machine_facts
from report.pictures import Draw, draw_picture

from pdmux_actor.errors import DeviceUnavailable
from profiler.machine import gpu_facts
from profiler.specs import DeviceSpec


def draw_report(result: Path, picture: Path, draw: Draw) -> None:
    """`draw` fills the figure with the file's rows."""
    report = json.loads(result.read_text())
    title = f"{report['machine'].get('gpu', '')} {report['machine'].get('date', '')}"
    draw_picture(picture, report["rows"], draw, title=title)


def draw_questions(figure: Any, rows: Sequence[Row]) -> None:
    """Slowdown of each kind of work by the SMs of its lane, and what a lane of so many SMs would explain."""
    speeds = [row for row in rows if row["question"] == "speed"]
    works = list(dict.fromkeys(row["work"] for row in speeds))
    panels = figure.subplots(1, max(1, len(works)), sharey=True, squeeze=False)[0]
    for axes, work in zip(panels, works, strict=False):
        of_work = sorted((row for row in speeds if row["work"] == work), key=lambda row: row["sms"])
        sms = [row["sms"] for row in of_work]
        axes.plot(sms, [row["sms_ratio"] for row in of_work], "k:", label="all SMs / own")
        for name in ("eager", "graph", "beside_other_lane"):
            axes.plot(sms, [row[name] for row in of_work], marker=".", label=name.replace("_", " "))
        axes.set_title(work, fontsize="small")
        axes.set_xlabel("SMs of the lane")
        axes.set_yscale("log")
    panels[0].set_ylabel("time / time on all SMs")
    panels[0].legend(fontsize="small")


def draw_floors(figure: Any, rows: Sequence[Row]) -> None:
    """Time by SMs beside the floor, and what the whole GPU takes over its floors."""
    most = max((row["sms"] for row in rows), default=0)
    by_sms, over = figure.subplots(1, 2)
    for number, measured in enumerate(("decode", "prefill")):
        of_kind = sorted((row for row in rows if row["measured"] == measured), key=lambda row: row["sms"])
        first = next((row for row in of_kind if row["sms"] < most), None)
        same = [r for r in of_kind if first and (r["batch"], r["tokens"]) == (first["batch"], first["tokens"])]
        for field, style in (("seconds", "-"), ("floor_s", ":")):
            label = f"{measured} {'' if field == 'seconds' else 'floor'}"
            values = [1e3 * row[field] for row in same]
            by_sms.plot([row["sms"] for row in same], values, f"C{number}{style}", marker=".", label=label)
    by_sms.set(xlabel="SMs of the lane", ylabel="ms", yscale="log")
    by_sms.legend(fontsize="small")
    whole = [row for row in rows if row["sms"] == most]
    over.barh([f"{r['measured']} {r['batch']} x {r['tokens']}" for r in whole], [r["over_floor"] for r in whole])
    over.axvline(1.0, color="k", linestyle=":")
    over.set_xlabel("time / floor, all SMs")


def draw_bars(figure: Any, rows: Sequence[Row], *, group: str, bar: str, value: str, label: str) -> None:
    """One panel for each `group`, one bar for each `bar`."""
    groups = list(dict.fromkeys(row[group] for row in rows))
    panels = figure.subplots(1, max(1, len(groups)), squeeze=False)[0]
    for axes, name in zip(panels, groups, strict=False):
        chosen = [row for row in rows if row[group] == name]
        axes.barh([str(row[bar]) for row in chosen], [row[value] for row in chosen])
        axes.invert_yaxis()
        axes.set_title(name, fontsize="small")
        axes.set_xlabel(label)


_LOG = logging.getLogger(__name__)


class KeptRows:
    """`path` None keeps them in memory only. `resume` begins with what the file holds, so that only the rest is run."""

    def __init__(self, path: Path | None, key: Sequence[str], *, resume: bool = False, limit_s: float = 1e9) -> None:
        """`key`: the fields that tell rows apart. `limit_s`: no row is begun later than that."""
        self._path = path
        self._key = tuple(key)
        self._started_s = time.perf_counter()
        self._limit_s = limit_s
        self.rows: list[Row] = []
        self.facts: dict[str, Any] = {}
        self.failures: dict[str, str] = {}  # of this run
        if resume and path is not None and path.exists():
            kept = json.loads(path.read_text())
            self.rows, self.facts = kept["rows"], kept["machine"]
            self.facts.pop("failures", None)  # what failed is tried again

    def wants(self, **key: object) -> bool:
        """Whether a row is missing and there is time for it."""
        assert set(key) == set(self._key), f"rows are told apart by {self._key}"
        is_kept = any(all(row[name] == value for name, value in key.items()) for row in self.rows)
        return not is_kept and time.perf_counter() - self._started_s < self._limit_s

    def attempt(self, key: Row, measure: Callable[[], Row]) -> None:
        """Adds what `measure` gives, if it is wanted. A measurement that fails costs no other its row.

        Raises DeviceUnavailable: there is no GPU to measure anything on.
        """
        if not self.wants(**key):
            return
        try:
            self.add({**key, **measure()})
        except DeviceUnavailable:
            raise
        except Exception as error:
            name = " ".join(map(str, key.values()))
            _LOG.exception("%s could not be measured", name)
            self.failures[name] = f"{type(error).__name__}: {error}"[:500]
            self.note({"failures": self.failures})

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self._write()

    def note(self, facts: Mapping[str, Any]) -> None:
        self.facts.update(facts)
        self._write()

    def note_gpu(self, device: DeviceSpec, chosen: Mapping[str, str]) -> None:
        """`chosen`: how it is partitioned, and what else was chosen for it."""
        facts = {**machine_facts(device), "gpu": device.name, **gpu_facts()}
        self.note({**facts, **chosen})

    def _write(self) -> None:
        write_report(self._path, self.facts, self.rows)


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
