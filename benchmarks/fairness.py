"""What a greedy tenant does to its neighbour: both ask the same model, each with an API key of its own.

    python benchmarks/fairness.py [--json FILE] [--quick]

The product's gateway (HTTP, keys, admission, routing, frame streams) in front of two units whose engines are simulated
in real time: launches take what Llama 3.1 8B takes on an H200 according to the roofline. Two tenants send Poisson
arrivals of streamed completions. `fair`: each sends its share. `greedy`: one sends ten times its share, the other goes
on as before. `greedy, one key`: the same load, but both tenants use one key, so that nothing tells them apart: what a
gateway without fair queueing would do. The phases take turns. The share is SHARE of the requests per second that the
two units answered when they were asked for more than they could do.

Reported is the neighbour's time to the first token over all rounds, its ratio to `fair`, the spread of that ratio over
rounds, and how many of each tenant's requests were answered.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cpu_machine
import httpx
import uvicorn
from gateway_overhead import MODELS, write_checkpoint
from rich.console import Console
from rich.table import Table

from pdmux_actor.backends.native import NativeEngine
from pdmux_actor.lease import Lease, ModelAssignment, ModelPhase
from pdmux_actor.messages import Slo
from pdmux_actor.serving.commands import EngineSettings
from pdmux_actor.serving.unit import Unit
from router.access.api_keys import FreshKey, KeyEntry, KeyRing, make_key
from router.http.app import create_app
from router.limits import GatewayLimits
from router.serving.gateway import Gateway
from router.view import FleetView, ModelCard, UnitView

MODEL = "llama-8b"
SLO = Slo(ttft_s=1.0, tbt_s=0.1)
PROMPT_TOKENS = 3000
OUTPUT_TOKENS = 8
GREED = 10.0
SHARE = 0.35  # of the capacity, for each of the two tenants
NUM_UNITS = 2
VIEW_PERIOD_S = 0.25
KV_POOL_BYTES = 8 * 1024**3
PHASES = ("fair", "greedy", "greedy, one key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    status: int
    ttft_s: float


class Fleet:
    """Units and a gateway on a real server, in this process; the engines have processes of their own."""

    def __init__(self, folder: Path) -> None:
        self.keys = {name: make_key() for name in ("neighbour", "greedy")}
        self._folder = folder
        self._units: list[Unit] = []
        self._gateway = Gateway(GatewayLimits(max_queued=256, hold_s=10.0))
        self._stack = AsyncExitStack()
        self.url = ""

    async def __aenter__(self) -> "Fleet":
        write_checkpoint(self._folder, MODELS["8b"])
        for index in range(NUM_UNITS):
            await self._start_unit(f"unit-{index}")
        self._gateway.access.set_keys(KeyRing([_entry(name, key) for name, key in self.keys.items()]))
        config = uvicorn.Config(create_app(self._gateway, self._feed), port=0, log_level="error", loop="asyncio")
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        self._stack.push_async_callback(_stop, server, serving)
        await _until(lambda: server.started and self._gateway.routable_models())
        self.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
        for unit in self._units:
            await unit.stop()

    async def _start_unit(self, name: str) -> None:
        settings = EngineSettings(kind="simulated", kv_pool_bytes=KV_POOL_BYTES, device_type="H200")
        unit = Unit(NativeEngine(settings), unit_id=name, node="here", pool="simulated", num_gpus=1)
        await unit.start()
        self._units.append(unit)
        quota = unit.report().total_blocks
        model = ModelAssignment(model=MODEL, source=str(self._folder), quota_blocks=quota, slo=SLO)
        unit.apply_lease(Lease(version=1, models=(model,), policy="mux", stream_token="token"))
        await _until(lambda: any(m.phase is ModelPhase.READY for m in unit.report().models))

    async def _feed(self, gateway: Gateway) -> None:
        card = ModelCard(model=MODEL, source=str(self._folder), revision=None, slo=SLO, created_s=0)
        while True:
            units = tuple(UnitView(report=unit.report(), age_s=0.0) for unit in self._units)
            gateway.update_view(FleetView(models=(card,), units=units, stream_token="token"))
            await asyncio.sleep(VIEW_PERIOD_S)


async def _until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110  (units and servers tell nobody that they are ready)
            await asyncio.sleep(0.1)


def _entry(name: str, key: FreshKey) -> KeyEntry:
    return KeyEntry(key_id=key.key_id, name=name, hash=key.hash)


async def _stop(server: uvicorn.Server, serving: asyncio.Task[None]) -> None:
    server.should_exit = True
    await serving


async def ask(http: httpx.AsyncClient, key: FreshKey, draw: random.Random) -> Reply:
    prompt = [draw.randrange(256) for _ in range(PROMPT_TOKENS)]
    body = {"model": MODEL, "prompt": prompt, "max_tokens": OUTPUT_TOKENS, "stream": True, "ignore_eos": True}
    began = time.perf_counter()
    headers = {"authorization": f"Bearer {key.secret}"}
    async with http.stream("POST", "/v1/completions", json=body, headers=headers) as reply:
        async for _ in reply.aiter_bytes():
            first_s = time.perf_counter() - began
            break
        else:
            first_s = float("nan")
        async for _ in reply.aiter_bytes():
            pass
    return Reply(status=reply.status_code, ttft_s=first_s)


async def send(
    http: httpx.AsyncClient, key: FreshKey, rate_per_s: float, duration_s: float, draw: random.Random
) -> list[Reply]:
    """Poisson arrivals, open loop."""
    tasks: list[asyncio.Task[Reply]] = []
    due_s = began = time.perf_counter()
    while (due_s := due_s + draw.expovariate(rate_per_s)) < began + duration_s:
        await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
        tasks.append(asyncio.create_task(ask(http, key, draw)))
    return list(await asyncio.gather(*tasks))


async def capacity_per_s(fleet: Fleet, http: httpx.AsyncClient) -> float:
    """Answers per second under more load than the units can take, without the first and last moments."""
    draw = random.Random(0)
    ends: list[float] = []

    async def loop(until_s: float) -> None:
        while time.perf_counter() < until_s:
            if (await ask(http, fleet.keys["neighbour"], draw)).status == 200:
                ends.append(time.perf_counter())

    began = time.perf_counter()
    await asyncio.gather(*(loop(began + 10.0) for _ in range(32)))
    inside = [e for e in ends if began + 2.0 <= e <= began + 10.0]
    return len(inside) / 8.0


async def phase(
    fleet: Fleet, http: httpx.AsyncClient, name: str, share_per_s: float, duration_s: float, seed: int
) -> dict[str, list[Reply]]:
    greedy_key = fleet.keys["neighbour" if name == "greedy, one key" else "greedy"]
    greedy_per_s = share_per_s * (1.0 if name == "fair" else GREED)
    neighbour, greedy = await asyncio.gather(
        send(http, fleet.keys["neighbour"], share_per_s, duration_s, random.Random(seed)),
        send(http, greedy_key, greedy_per_s, duration_s, random.Random(seed + 1)),
    )
    await asyncio.sleep(1.0)
    return {"neighbour": neighbour, "greedy": greedy}


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def summary(rounds: Sequence[dict[str, dict[str, list[Reply]]]], share_per_s: float) -> list[dict[str, Any]]:
    def answered_s(name: str, index: int) -> list[float]:
        return [r.ttft_s for r in rounds[index][name]["neighbour"] if r.status == 200]

    fair = [s for i in range(len(rounds)) for s in answered_s("fair", i)]
    rows = []
    for name in PHASES:
        pooled = [s for i in range(len(rounds)) for s in answered_s(name, i)]
        ratios = [
            percentile(answered_s(name, i), 0.99) / percentile(answered_s("fair", i), 0.99) for i in range(len(rounds))
        ]
        replies = {who: [r for of in rounds for r in of[name][who]] for who in ("neighbour", "greedy")}
        row: dict[str, Any] = {
            "phase": name,
            "neighbour_requests_per_s": round(share_per_s, 2),
            "greedy_requests_per_s": round(share_per_s * (1.0 if name == "fair" else GREED), 2),
            "neighbour_ttft_ms": {
                "p50": round(1e3 * percentile(pooled, 0.5), 1) if pooled else None,
                "p99": round(1e3 * percentile(pooled, 0.99), 1) if pooled else None,
            },
            "p99_ratio_to_fair": round(percentile(pooled, 0.99) / percentile(fair, 0.99), 3) if pooled else None,
            "p99_ratio_spread": [round(min(ratios), 3), round(max(ratios), 3)],
        }
        for who, of_tenant in replies.items():
            statuses = [r.status for r in of_tenant]
            row[f"{who}_answered"] = {
                "sent": len(statuses),
                "answered": statuses.count(200),
                "shed": statuses.count(429),
                "other": len(statuses) - statuses.count(200) - statuses.count(429),
            }
        rows.append(row)
    return rows


async def measure(duration_s: float, num_rounds: int) -> tuple[float, list[dict[str, Any]]]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    with tempfile.TemporaryDirectory() as folder:
        async with (
            Fleet(Path(folder)) as fleet,
            httpx.AsyncClient(base_url=fleet.url, limits=limits, timeout=60) as http,
        ):
            capacity = await capacity_per_s(fleet, http)
            share = SHARE * capacity
            rounds = []
            for index in range(num_rounds):
                order = PHASES[index % len(PHASES) :] + PHASES[: index % len(PHASES)]
                rounds.append({name: await phase(fleet, http, name, share, duration_s, 100 + index) for name in order})
            return capacity, summary(rounds, share)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--quick", action="store_true", help="two short rounds")
    arguments = parser.parse_args()
    duration_s, num_rounds = (10.0, 2) if arguments.quick else (20.0, 4)
    capacity, rows = asyncio.run(measure(duration_s, num_rounds))
    table = Table(
        "phase", "neighbour TTFT p50", "p99", "ratio of p99 (rounds)", "neighbour answered", "greedy answered"
    )
    for row in rows:
        ttft, spread = row["neighbour_ttft_ms"], row["p99_ratio_spread"]
        table.add_row(
            row["phase"],
            f"{ttft['p50']} ms",
            f"{ttft['p99']} ms",
            f"{row['p99_ratio_to_fair']} ({spread[0]}-{spread[1]})",
            *(f"{row[k]['answered']} of {row[k]['sent']}" for k in ("neighbour_answered", "greedy_answered")),
        )
    Console().print(table)
    if arguments.json is not None:
        document = {
            "machine": {
                **cpu_machine.facts(),
                "python": platform.python_version(),
                "load_average_at_end": os.getloadavg()[0],
            },
            "engine": "simulated in real time, Llama 3.1 8B on an H200 by the roofline",
            "units": NUM_UNITS,
            "prompt_tokens": PROMPT_TOKENS,
            "output_tokens": OUTPUT_TOKENS,
            "capacity_requests_per_s": round(capacity, 2),
            "greed": GREED,
            "rounds": num_rounds,
            "rows": rows,
        }
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
