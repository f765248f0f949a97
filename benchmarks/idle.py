"""What a fleet costs while nobody asks anything: CPU time, memory, processes and threads, by part.

    python benchmarks/idle.py [--json FILE] [--quick] [--proxy python|haproxy] [--replicas N]

A fleet of one simulated unit is started with `muxfleet up`, and after it Ray and Serve alone, as `muxfleet up` starts
them: once empty, and once with as many replicas that do nothing as the fleet has. Each is left to itself for a while
and then watched. What is beyond Ray's own is the difference. CPU time is what the kernel counts for each process: other
work on the machine makes it some tenths larger (caches), not several times.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fleets.running_fleet import PartCost, cpu_between, running_fleet, total, tree_costs
from gateway_overhead import write_fleet
from report.command import make_parser, print_table, write_report
from report.machine_facts import machine_facts

FIRST_PORT = 23_500
SETTLE_S = 8.0


@contextmanager
def empty_serve(*, proxy: str, replicas: int, port: int) -> Iterator[int]:
    """Yields the number of the process that holds Ray and Serve."""
    here = str(Path(__file__).parent)
    program = f"import sys; sys.path.insert(0, {here!r})\nfrom muxfleet.lean_serve import leave_pandas_out\n"
    program += f"leave_pandas_out()\nfrom fleets.empty_serve import main\nmain({port}, {proxy!r}, {replicas})"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        while line := process.stdout.readline():
            if line == b"serving\n":
                break
        assert line, "Serve did not start"
        yield process.pid
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def watched(what: str, pid: int, seconds: float) -> list[dict[str, Any]]:
    """A row for each part of the tree, and one for all of it."""
    time.sleep(SETTLE_S)
    began_s, before = time.monotonic(), tree_costs(pid)
    time.sleep(seconds)
    lasted_s, after = time.monotonic() - began_s, tree_costs(pid)
    spent = cpu_between(before, after)
    parts = sorted(after, key=lambda part: -spent[part])
    rows = [_row(what, part, spent[part] / lasted_s, after[part]) for part in parts]
    whole = total(after.values())
    return [*rows, _row(what, "all", sum(spent.values()) / lasted_s, whole) | {"cpu_to_here_s": whole.cpu_s}]


def _row(what: str, part: str, cores: float, cost: PartCost) -> dict[str, Any]:
    return {
        "what": what,
        "part": part,
        "core_percent": 100 * cores,
        "processes": cost.processes,
        "threads": cost.threads,
        "unique_mib": cost.memory_bytes / 2**20,
        "resident_mib": cost.resident_bytes / 2**20,
        "load_average_1_min": round(os.getloadavg()[0], 1),
    }


COLUMNS: Mapping[str, str] = {
    "what": "{what}",
    "part": "{part}",
    "% of a core": "{core_percent:.2f}",
    "processes": "{processes}",
    "threads": "{threads}",
    "unique MiB": "{unique_mib:.0f}",
    "resident MiB": "{resident_mib:.0f}",
    "load": "{load_average_1_min}",
}


def main() -> None:
    parser = make_parser(__doc__, quick="watched for 20 s each, not for 60")
    parser.add_argument("--proxy", choices=("python", "haproxy"), default="haproxy")
    parser.add_argument("--replicas", type=int, default=4, help="that do nothing, as many as the fleet's (default: 4)")
    args = parser.parse_args()
    seconds = 20.0 if args.quick else 60.0
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="idle-") as folder:
        fleet_file = write_fleet(Path(folder), proxy=args.proxy, port=FIRST_PORT)
        with running_fleet(fleet_file) as fleet:
            rows += watched("fleet", fleet.pid, seconds)
    for place, (what, replicas) in enumerate({"empty Serve": 0, "idle replicas": args.replicas}.items(), start=1):
        with empty_serve(proxy=args.proxy, replicas=replicas, port=FIRST_PORT + place) as pid:
            rows += watched(what, pid, seconds)
    print_table(rows, COLUMNS, title="an idle fleet of one unit, and Ray and Serve without it")
    write_report(args.json, machine_facts(), rows, setting={"proxy": args.proxy, "seconds": seconds})


if __name__ == "__main__":
    main()
