"""Where the seconds go between `muxfleet up` and the first token.

    python benchmarks/start.py [--json FILE] [--quick] [--proxy python|haproxy]

A fleet of two small models on one simulated unit is started again and again. The first table has the moment of each
line that `muxfleet up` prints, and of the first token of a chat; the second what each part of the fleet has spent on it
of CPU time, which other work on the machine changes less than the moments.
"""

import os
import re
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import uvloop
from fleets.running_fleet import running_fleet, tree_costs
from gateway_overhead import MODELS, Gateway, write_fleet
from report.command import make_parser, print_table, write_report
from report.machine_facts import machine_facts

PORT = 23_520
_STAGE = re.compile(r"^\s*([0-9.]+) s  (?!still )(.+?)(?: fleet '.*)?$")


async def first_token(url: str) -> None:
    async with Gateway(url) as gateway:
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1, "stream": True}
        asked = {"model": next(iter(MODELS)), "stream_options": {"include_usage": True}, **body}
        await gateway.post(0, asked)


def started(fleet_file: Path) -> list[dict[str, Any]]:
    """Rows of one start: stages in seconds since the command, then parts in seconds of CPU time."""
    began_s = time.monotonic()
    with running_fleet(fleet_file) as fleet:
        serving_s = time.monotonic() - began_s
        uvloop.run(first_token(fleet.url))
        token_s = time.monotonic() - began_s
        costs = tree_costs(fleet.pid)
        told = [(found.group(2), float(found.group(1))) for line in fleet.lines if (found := _STAGE.match(line))]
    # `muxfleet up` counts from when it has read the file: its first line is later by what its own start takes.
    stages = {f"'{text}'": at_s for text, at_s in reversed(told)}
    moments = {**dict(reversed(stages.items())), "it serves": serving_s, "first token": token_s}
    spent = {part: cost.cpu_s for part, cost in sorted(costs.items(), key=lambda item: -item[1].cpu_s)}
    spent["all"] = sum(spent.values())
    return [
        *({"kind": "moment", "what": what, "seconds": at_s} for what, at_s in moments.items()),
        *({"kind": "CPU time", "what": part, "seconds": cpu_s} for part, cpu_s in spent.items()),
    ]


def summary(starts: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The median over starts, with the least and the most; stages that not every start went through are left out."""
    seen: dict[tuple[str, str], list[float]] = {}
    for rows in starts:
        for row in rows:
            seen.setdefault((row["kind"], row["what"]), []).append(row["seconds"])
    return [
        {"kind": kind, "what": what, "median_s": statistics.median(all_s), "least_s": min(all_s), "most_s": max(all_s)}
        for (kind, what), all_s in seen.items()
        if len(all_s) == len(starts)
    ]


COLUMNS: Mapping[str, str] = {
    "": "{kind}",
    "of": "{what}",
    "seconds": "{median_s:.1f}",
    "least..most": "{least_s:.1f}..{most_s:.1f}",
}


def main() -> None:
    parser = make_parser(__doc__, quick="one start, not five")
    parser.add_argument("--proxy", choices=("python", "haproxy"), default="haproxy")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="start-") as folder:
        fleet_file = write_fleet(Path(folder), proxy=args.proxy, port=PORT)
        starts = [started(fleet_file) for _ in range(1 if args.quick else 5)]
    rows = summary(starts)
    print_table(rows, COLUMNS, title=f"from the command to the first token (load average {os.getloadavg()[0]:.1f})")
    write_report(args.json, machine_facts(), rows, setting={"proxy": args.proxy, "starts": len(starts)})


if __name__ == "__main__":
    main()
