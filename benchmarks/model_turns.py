"""More models than a unit holds: what waits are, and whom nobody serves.

    python benchmarks/model_turns.py [--quick] [--json FILE]
    python benchmarks/model_turns.py --models 12 --units 3 --seconds 240 --rate 1

A real fleet on this machine's cores: units of the CPU engine with room for one model of 26 MiB each beside the pool,
models that may be scaled to zero. Requests come at random, half of them for the first model and the other half for all
others alike, each for `--tokens` tokens, streamed. Of each model the table has the requests, those that were refused or
failed, and the waits for a first token. A model is read from the system's file cache, or woken from host memory.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml
from engines.llama_checkpoint import shape_of
from fleets.running_fleet import running_fleet
from report.command import make_parser, print_table, write_report
from report.machine_facts import machine_facts

from pdmux_actor.models.random_checkpoint import write_random_checkpoint

SHAPE = shape_of(4, 256, 512, 4, 2)
ROOM_FOR_ONE = "75MiB"
PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """`first_s` is None where there was no whole answer; `status` says why, 0 for a broken one."""

    model: str
    first_s: float | None
    status: int


async def ask(client: httpx.AsyncClient, model: str, tokens: int) -> Asked:
    began_s, first_s, is_whole = time.monotonic(), None, False
    body = {"model": model, "prompt": "Say it.", "max_tokens": tokens, "stream": True, "ignore_eos": True}
    try:
        async with client.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != httpx.codes.OK:
                return Asked(model=model, first_s=None, status=response.status_code)
            async for line in response.aiter_lines():
                if line.startswith("data: {") and first_s is None:
                    first_s = time.monotonic() - began_s
                is_whole |= line == "data: [DONE]"
    except httpx.HTTPError:
        is_whole = False
    return Asked(model=model, first_s=first_s if is_whole else None, status=200 if is_whole else 0)


async def load(url: str, models: list[str], options: argparse.Namespace) -> list[Asked]:
    drawn, asked = random.Random(options.seed), list[asyncio.Task[Asked]]()
    limits = httpx.Limits(max_connections=None)
    client = httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, limits=limits, trust_env=False)
    async with client, asyncio.TaskGroup() as all_:
        began_s = time.monotonic()
        while time.monotonic() - began_s < options.seconds:
            model = models[0] if drawn.random() < 0.5 else drawn.choice(models[1:])
            asked.append(all_.create_task(ask(client, model, options.tokens)))
            await asyncio.sleep(drawn.expovariate(options.rate))
    return [task.result() for task in asked]


def rows_of(asked: list[Asked], models: list[str]) -> list[dict[str, Any]]:
    rows = []
    for model in models:
        mine = [a for a in asked if a.model == model]
        waits_s = sorted(a.first_s for a in mine if a.first_s is not None)
        rows.append(
            {
                "model": model,
                "requests": len(mine),
                "refused": sum(a.status not in (0, 200) for a in mine),
                "broken": sum(a.status == 0 for a in mine),
                "wait_p50_s": round(statistics.median(waits_s), 2) if waits_s else None,
                "wait_max_s": round(waits_s[-1], 2) if waits_s else None,
            }
        )
    return rows


def main() -> None:
    parser = make_parser(__doc__, quick="a minute")
    parser.add_argument("--models", type=int, default=7)
    parser.add_argument("--units", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--rate", type=float, default=0.5, help="requests per second")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    if options.models < 2 or options.rate <= 0:
        parser.error("--models takes 2 or more, --rate a number above 0")
    options.seconds = 60.0 if options.quick else options.seconds
    models = [f"m{i}" for i in range(options.models)]
    with tempfile.TemporaryDirectory() as parent:
        for number, model in enumerate(models):
            write_random_checkpoint(Path(parent) / model, SHAPE, seed=number)
        fleet_file = Path(parent) / "fleet.yaml"
        replicas = {"min": 0, "max": 1}
        pool = {"name": "p", "device": "cpu", "cores": 1, "kv_memory": "16MiB", "device_memory": ROOM_FOR_ONE}
        fleet = {
            "models": [{"id": m, "source": f"./{m}", "replicas": replicas} for m in models],
            "pools": [{**pool, "nodes": {"min": options.units, "max": options.units}}],
            "gateway": {"port": options.port},
        }
        fleet_file.write_text(yaml.safe_dump(fleet))
        with running_fleet(fleet_file) as running:
            asked = asyncio.run(load(running.url, models, options))
    rows = rows_of(asked, models)
    print_table(rows, {key: f"{{{key}}}" for key in rows[0]})
    write_report(options.json, machine_facts(), rows)


if __name__ == "__main__":
    main()
