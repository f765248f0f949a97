"""A benchmark's rows, in its file from the moment each is measured: a run that is killed loses the row it was at."""

import argparse
import json
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from machine_facts import machine_facts, write_report

from profiler.specs import DeviceSpec

Row = Mapping[str, Any]


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
        if resume and path is not None and path.exists():
            kept = json.loads(path.read_text())
            self.rows, self.facts = kept["rows"], kept["machine"]

    def wants(self, **key: object) -> bool:
        """Whether a row is missing and there is time for it."""
        assert set(key) == set(self._key), f"rows are told apart by {self._key}"
        is_kept = any(all(row[name] == value for name, value in key.items()) for row in self.rows)
        return not is_kept and time.perf_counter() - self._started_s < self._limit_s

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self._write()

    def note(self, facts: Mapping[str, Any]) -> None:
        self.facts.update(facts)
        self._write()

    def _write(self) -> None:
        if self._path is not None:
            write_report(self._path, self.facts, self.rows)


def gpu_facts(device: DeviceSpec, *, partitioned_by: str) -> dict[str, object]:
    driver = None
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.split("\n")[0]
    return {**machine_facts(device), "gpu": device.name, "driver": driver, "partitioned_by": partitioned_by}


def add_arguments(parser: argparse.ArgumentParser, *, limit_s: float = 540.0) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="written after every row")
    parser.add_argument("--resume", action="store_true", help="run only what FILE does not hold yet")
    parser.add_argument("--limit-s", type=float, default=limit_s, help="begin no row later (default: %(default).0f)")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw FILE afterwards")
    parser.add_argument("--replot", action="store_true", help="measure nothing: draw what FILE holds")


def check_arguments(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if (options.plot or options.resume) and options.json is None:
        parser.error("--plot and --resume need --json FILE: it is what they read")
    if options.replot and (options.plot is None or not options.json.exists()):
        parser.error("--replot needs --plot PNG and an existing --json FILE")
