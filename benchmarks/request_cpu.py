"""What a streamed chat costs in CPU time from the client's socket to its last token, by part of a running fleet.

    python benchmarks/request_cpu.py [--json FILE] [--quick] [--model 8b|1b] [--streams N] [--proxy python|haproxy]

A fleet of one simulated unit with two gateways is started with `muxfleet up`, left to itself, then asked by a closed
loop of streamed chats of 64 tokens, and each time the kernel's count for each process is read. `beyond idle` is what is
left without what the part spent in as many seconds before, when nobody asked. The engine's process is listed, and not
in the sum: on a GPU its work is another.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvloop
from fleets.running_fleet import cpu_between, running_fleet, tree_costs
from gateway_overhead import write_fleet
from load.sse_client import SseConnection, ask_in_turn
from report.command import make_parser, print_table, write_report
from report.machine_facts import machine_facts

PORT = 23_470
SETTLE_S, IDLE_S, OUTPUT_TOKENS = 8.0, 15.0, 64
ENGINE = "engine"


async def ask(host: str, port: int, model: str, *, streams: int, requests: int) -> None:
    numbers = iter(range(requests))

    async def ask_beside_others() -> None:
        connection = await SseConnection.open(host, port)
        await ask_in_turn(connection, numbers, model=model, output_tokens=OUTPUT_TOKENS)

    await asyncio.gather(*(ask_beside_others() for _ in range(streams)))


def measure(pid: int, url: str, model: str, *, streams: int, requests: int) -> list[dict[str, Any]]:
    """A row for each part of the fleet, and one for all but the engine."""
    at = urlsplit(url)
    assert at.hostname is not None
    assert at.port is not None
    uvloop.run(ask(at.hostname, at.port, model, streams=streams, requests=2 * streams))  # warms up
    time.sleep(SETTLE_S)
    before = tree_costs(pid)
    time.sleep(IDLE_S)
    idle = cpu_between(before, tree_costs(pid))
    began_s, before = time.monotonic(), tree_costs(pid)
    uvloop.run(ask(at.hostname, at.port, model, streams=streams, requests=requests))
    lasted_s, spent = time.monotonic() - began_s, cpu_between(before, tree_costs(pid))
    rows = [
        {
            "model": model,
            "part": part,
            "ms": 1e3 * cpu_s / requests,
            "beyond_idle_ms": 1e3 * (cpu_s - idle.get(part, 0.0) * lasted_s / IDLE_S) / requests,
            "requests_per_s": requests / lasted_s,
            "load_average_1_min": round(os.getloadavg()[0], 1),
        }
        for part, cpu_s in sorted(spent.items(), key=lambda found: -found[1])
    ]
    counted = [row for row in rows if row["part"] != ENGINE]
    whole = {name: sum(row[name] for row in counted) for name in ("ms", "beyond_idle_ms")}
    return [*rows, {**rows[0], "part": "all but the engine", **whole}]


COLUMNS: Mapping[str, str] = {
    "model": "{model}",
    "part": "{part}",
    "ms": "{ms:.2f}",
    "beyond idle": "{beyond_idle_ms:.2f}",
    "requests/s": "{requests_per_s:.0f}",
    "load": "{load_average_1_min}",
}


def main() -> None:
    parser = make_parser(__doc__, quick="600 requests, not 3,000")
    parser.add_argument("--model", choices=("8b", "1b"), default="8b", help="steps of some 4 ms, or of 1 ms")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--proxy", choices=("python", "haproxy"), default="haproxy")
    args = parser.parse_args()
    requests = 600 if args.quick else 3000
    with tempfile.TemporaryDirectory(prefix="request-cpu-") as folder:
        fleet_file = write_fleet(Path(folder), proxy=args.proxy, port=PORT)
        with running_fleet(fleet_file) as fleet:
            rows = measure(fleet.pid, fleet.url, args.model, streams=args.streams, requests=requests)
    print_table(rows, COLUMNS, title=f"CPU time of a streamed chat of {OUTPUT_TOKENS} tokens, by part")
    write_report(args.json, machine_facts(), rows, setting={"streams": args.streams, "proxy": args.proxy})


if __name__ == "__main__":
    main()
