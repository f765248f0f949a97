"""What clients see when a process of a fleet is killed, stopped, starved of memory; a disk is full, the clock jumps.

    python benchmarks/chaos_table.py [--only "engine/killed" ...] [--again] [--budget-s 240] [--write]

A simulated fleet of three units and two gateways; three models, each with two replicas; twelve clients. A row is done
once and kept in the JSON file, so the table can be made bit by bit: `--budget-s` begins no further row after so many
seconds. Faults of the machine have a fleet each: `disk full` needs root (a tmpfs of its own for what the fleet writes),
`clock` a C compiler (`clock_shift.c`). `--write` puts what is there into docs/operations.md.
"""

import argparse
import asyncio
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fleets.chaos_cells import (
    FAULTS,
    PROCESSES,
    Cell,
    FleetProcess,
    Load,
    MissingProcess,
    find,
    is_alive,
    measure,
    running,
)
from report.command import write_report
from report.machine_facts import machine_facts

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "chaos_table.json"
PAGE = ROOT / "docs" / "operations.md"
_BEGIN, _END = "<!-- chaos table: begin -->", "<!-- chaos table: end -->"
_DISK_BYTES = 1 << 30
_MACHINE_S = 20.0
MACHINE_FAULTS: Mapping[str, str] = MappingProxyType(
    {"machine/disk full": "disk", "machine/clock +1 h": "+3600", "machine/clock -1 h": "-3600"}
)
ROWS: Sequence[str] = (*(f"{p}/{f}" for p in PROCESSES for f in FAULTS), *MACHINE_FAULTS)


def of_process(fleet: FleetProcess, load: Load, row: str) -> Cell:
    process, _, fault = row.partition("/")
    victim = find(fleet, process)
    return measure(fleet, load, lambda: FAULTS[fault](victim), lambda: not is_alive(victim))


def of_machine(folder: Path, row: str) -> Cell:
    """Of a fleet that knows no other disk, or no other clock."""
    if MACHINE_FAULTS[row] == "disk":
        mount = f'mount -t tmpfs -o size={_DISK_BYTES} tmpfs /tmp && exec "$@"'
        with running(folder, prefix=["unshare", "--mount", "bash", "-c", mount, "bash"]) as fleet:
            return measure(fleet, Load.calibrated(fleet.url), lambda: _fill_disk(fleet), lambda: False)
    library, clock = folder / "clock_shift.so", folder / "clock"
    source = ROOT / "benchmarks" / "fleets" / "clock_shift.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"], check=True)
    clock.write_text(f"{0:<16}")
    with running(folder, environment={"LD_PRELOAD": str(library), "CLOCK_SHIFT_FILE": str(clock)}) as fleet:
        load = Load.calibrated(fleet.url)
        return measure(fleet, load, lambda: _shift_clock(clock, MACHINE_FAULTS[row]), lambda: False)


async def _fill_disk(fleet: FleetProcess) -> None:
    def in_its_namespace(command: str) -> None:
        subprocess.run(["nsenter", "--mount", f"--target={fleet.pid}", "bash", "-c", command], check=False)

    await asyncio.to_thread(in_its_namespace, "cat /dev/zero > /tmp/fill 2>/dev/null; df --output=avail /tmp")
    await asyncio.sleep(_MACHINE_S)
    await asyncio.to_thread(in_its_namespace, "rm /tmp/fill")


async def _shift_clock(clock: Path, shift: str) -> None:
    with clock.open("r+") as file:
        file.write(f"{shift:<16}")
    await asyncio.sleep(_MACHINE_S)


def run_rows(rows: Sequence[str], results: dict[str, Any], until_s: float) -> None:
    folder = Path(tempfile.mkdtemp(prefix="chaos-table-", dir=Path.home()))  # /tmp is what gets full
    try:
        of_processes = [row for row in rows if row not in MACHINE_FAULTS]
        if of_processes:
            # What Ray itself runs on comes back with the whole fleet, when `up` is told to.
            with running(folder, options=["--restart"]) as fleet:
                load = Load.calibrated(fleet.url)
                for row in of_processes:
                    if time.monotonic() > until_s:
                        break
                    _keep(results, row, lambda row=row: of_process(fleet, load, row))
                    if results[row].get("back_s", 0.0) is None:
                        break  # what it left is no fleet to measure on
        for row in [row for row in rows if row in MACHINE_FAULTS]:
            if time.monotonic() < until_s:
                _keep(results, row, lambda row=row: of_machine(folder, row))
    finally:
        shutil.rmtree(folder)


def _keep(results: dict[str, Any], row: str, measured: Any) -> None:  # noqa: ANN401  a call without arguments
    try:
        results[row] = asdict(measured())
    except MissingProcess:
        results[row] = {"missing": True}
    print(row, json.dumps(results[row]), flush=True)
    write_report(RESULTS, machine_facts(), results)


def table(results: Mapping[str, Any]) -> str:
    lines = ["| process | fault | requests | lost | refused | repeated | longest silence | back after |"]
    lines.append("|---|---|--:|--:|--:|--:|--:|--:|")
    for row in ROWS:
        process, _, fault = row.partition("/")
        told = results.get(row)
        if told is None or told.get("missing"):
            why = "not measured" if told is None else "the fleet runs no such process"
            lines.append(f"| {process} | {fault} | {why} | | | | | |")
            continue
        back = "not within 150 s" if told["back_s"] is None else f"{told['back_s']:.1f} s"
        if fault == "out of memory" and not told["died"]:
            fault += " (asked for none, lived)"
        counts = " | ".join(str(told[key]) for key in ("requests", "lost", "refused", "repeated"))
        lines.append(f"| {process} | {fault} | {counts} | {told['silent_s']:.1f} s | {back} |")
    return "\n".join(lines)


def write_page(results: Mapping[str, Any]) -> None:
    before, begin, rest = PAGE.read_text().partition(_BEGIN)
    _, end, after = rest.partition(_END)
    assert begin, f"{PAGE} has no place for the table"
    assert end, f"{PAGE}: the table has no end"
    PAGE.write_text(f"{before}{begin}\n{table(results)}\n{end}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=ROWS, metavar="PROCESS/FAULT", default=[])
    parser.add_argument("--again", action="store_true", help="rows that are there already, too")
    parser.add_argument("--budget-s", type=float, default=float("inf"))
    parser.add_argument("--write", action="store_true", help="only write the table into docs/operations.md")
    arguments = parser.parse_args()
    results: dict[str, Any] = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else {}
    if not arguments.write:
        rows = [row for row in arguments.only or ROWS if arguments.again or row not in results]
        run_rows(rows, results, time.monotonic() + arguments.budget_s)
    write_page(results)


if __name__ == "__main__":
    main()
