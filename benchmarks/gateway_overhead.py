"""What the gateway and the actor add to an engine: time to the first token, and tokens per second.

    python benchmarks/gateway_overhead.py [--json FILE] [--quick] [--proxy python|haproxy]

For each of Serve's proxy modes a fleet is started with `muxfleet up`, and beside it the same engine process is driven
in-process, through `pdmux_actor.backends.native`. Rounds alternate between the two: a block of streamed chat
completions over HTTP, and a block of the same prompts submitted to the engine, both as a closed loop of 1 or 16
streams. The engine is simulated in real time: launches take what a model takes on an H200 according to the roofline,
so the two cores of a laptop serve the path and not the model.

Added TTFT is the difference of percentiles over all requests; its spread the 10th and 90th percentile over rounds of
the difference of medians. The ratio of tokens per second is the median over rounds, with the same spread. `GET /health`
crosses proxy, Serve and web framework but nothing behind them: its time is the part of the added TTFT that is not ours.
"""

import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvloop
from fleets.byte_checkpoint import byte_tokenizer, write_checkpoint
from fleets.running_fleet import running_fleet
from load.sse_client import SseConnection, StreamTimes, chat_body
from report.command import make_parser, print_table, write_report
from report.machine_facts import machine_facts

from deploy.fleet_file.settings import read_fleet_file
from deploy.serve.app_args import UnitShape
from deploy.serve.render import serve_config
from deploy.serve.units_application import actor_settings
from pdmux_actor.backends.native import NativeEngine
from pdmux_actor.lease import ModelAssignment
from pdmux_actor.messages import GenerateRequest, SamplingParams, Slo, TokenEvent
from pdmux_actor.models.demo_tokenizer import TURN_END, TURN_START

STREAMS = (1, 16)
PROMPT_CHARACTERS = 128
OUTPUT_TOKENS = 32
SLO = Slo(ttft_s=1.0, tbt_s=0.1)
FIRST_PORT = 23_400

# Llama 3.1 8B and Llama 3.2 1B: (layers, hidden, intermediate, heads, KV heads, head size)
MODELS = {"8b": (32, 4096, 14336, 32, 8, 128), "1b": (16, 2048, 8192, 32, 8, 64)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    ttft_s: float
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Requests that one closed loop answered."""

    answers: tuple[Answered, ...]
    wall_s: float

    @property
    def ttft_ms(self) -> list[float]:
        return [1e3 * a.ttft_s for a in self.answers]

    @property
    def tokens_per_s(self) -> float:
        return sum(a.num_tokens for a in self.answers) / self.wall_s


AdmissionRequest = Callable[[int, str], Awaitable[Answered]]
"""(stream, prompt) -> what came back"""


# ---- what is served ----


def write_fleet(folder: Path, *, proxy: str, port: int) -> Path:
    for name, shape in MODELS.items():
        write_checkpoint(folder / name, shape)
    models = [{"id": name, "source": f"./{name}"} for name in MODELS]
    pool = {"name": "simulated", "device": "simulated", "gpu_type": "H200", "kv_memory": "8GiB"}
    fleet = {"name": "overhead", "models": models, "pools": [pool], "gateway": {"port": port, "proxy": proxy}}
    file = folder / "fleet.yaml"
    file.write_text(json.dumps(fleet))
    return file


# ---- the two ways to ask ----


class DirectEngine:
    """The fleet's engine process without the fleet."""

    def __init__(self, fleet_file: Path) -> None:
        fleet = read_fleet_file(fleet_file)
        units = serve_config(fleet)["applications"][0]
        self._engine = NativeEngine(actor_settings(UnitShape.model_validate(units["args"])).engine)
        self._sources = {m.id: m.source for m in fleet.models}
        self._waiting: dict[str, asyncio.Queue[TokenEvent]] = {}
        self._tokenizer = byte_tokenizer()
        self._count = 0
        self._pump: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "DirectEngine":
        capacity = await self._engine.start()
        self._pump = asyncio.create_task(self._pump_events())
        quota = capacity.total_blocks // len(self._sources)
        for model, source in self._sources.items():
            await self._engine.add_model(ModelAssignment(model=model, source=source, quota_blocks=quota, slo=SLO))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._engine.stop()
        if self._pump is not None:
            await self._pump

    def prompt_token_ids(self, prompt: str) -> tuple[int, ...]:
        text = f"{TURN_START}user\n{prompt}{TURN_END}\n{TURN_START}assistant\n"
        return tuple(self._tokenizer.encode(text).ids)

    async def ask(self, model: str, prompt: str) -> Answered:
        self._count += 1
        request = GenerateRequest(
            request_id=str(self._count),
            model=model,
            prompt_token_ids=self.prompt_token_ids(prompt),
            sampling=SamplingParams(max_tokens=OUTPUT_TOKENS, temperature=0.0, ignore_eos=True),
            slo=SLO,
        )
        arrived = self._waiting[request.request_id] = asyncio.Queue()
        sent_s = time.perf_counter()
        self._engine.submit(request)
        first_s, num_tokens = 0.0, 0
        while True:
            event = await arrived.get()
            first_s = first_s or time.perf_counter()
            num_tokens += len(event.tokens)
            if event.finish is not None:
                assert event.error is None, event.error
                del self._waiting[request.request_id]
                return Answered(ttft_s=first_s - sent_s, num_tokens=num_tokens)

    async def _pump_events(self) -> None:
        async for events in self._engine.events():
            for event in events:
                self._waiting[event.request_id].put_nowait(event)


class Gateway:
    def __init__(self, url: str) -> None:
        self._address = urlsplit(url)
        self._connections: list[SseConnection] = []

    async def __aenter__(self) -> "Gateway":
        host, port = self._address.hostname, self._address.port
        assert host is not None
        assert port is not None
        self._connections = [await SseConnection.open(host, port) for _ in range(max(STREAMS))]
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._connections:
            connection.close()

    async def ask(self, model: str, stream: int, prompt: str, prompt_tokens: int) -> Answered:
        times = await self.post(stream, chat_body(model, prompt, OUTPUT_TOKENS))
        assert times.prompt_tokens == prompt_tokens, "both sides are asked the same"
        return Answered(ttft_s=times.first_s - times.sent_s, num_tokens=times.num_tokens)

    async def post(self, stream: int, body: Mapping[str, Any]) -> StreamTimes:
        return await self._connections[stream].stream("/v1/chat/completions", body)

    async def health_ms(self, count: int) -> list[float]:
        return [1e3 * await self._connections[0].get("/health") for _ in range(count)]


# ---- measuring ----


async def measure_block(ask: AdmissionRequest, prompts: Sequence[str], streams: int) -> Block:
    left = iter(prompts)
    answers: list[Answered] = []

    async def one(stream: int) -> None:
        answers.extend([await ask(stream, prompt) for prompt in left])

    started_s = time.perf_counter()
    await asyncio.gather(*(one(stream) for stream in range(streams)))
    block = Block(answers=tuple(answers), wall_s=time.perf_counter() - started_s)
    assert all(a.num_tokens == OUTPUT_TOKENS for a in block.answers)
    return block


async def measure(
    gateway: Gateway, direct: DirectEngine, *, model: str, streams: int, rounds: int, requests: int
) -> dict[str, Any]:
    """`requests` of each kind in every round; which kind goes first alternates."""
    blocks: dict[str, list[Block]] = {"gateway": [], "engine": []}
    health_ms: list[float] = []

    async def over_http(stream: int, prompt: str) -> Answered:
        return await gateway.ask(model, stream, prompt, len(direct.prompt_token_ids(prompt)))

    async def in_process(stream: int, prompt: str) -> Answered:
        return await direct.ask(model, prompt)

    for number in range(-1, rounds):  # the first round warms up
        prompts = [f"{streams}.{number}.{i} ".ljust(PROMPT_CHARACTERS, ".") for i in range(requests)]
        asks: list[tuple[str, AdmissionRequest]] = [("gateway", over_http), ("engine", in_process)]
        for kind, ask in asks if number % 2 else reversed(asks):
            block = await measure_block(ask, prompts, streams)
            if number >= 0:
                blocks[kind].append(block)
        if number >= 0:
            health_ms += await gateway.health_ms(requests // streams)
    figures = summary(blocks["gateway"], blocks["engine"], health_ms)
    return {"model": model, "streams": streams, "load_average_1_min": round(os.getloadavg()[0], 1)} | figures


def summary(gateway: Sequence[Block], engine: Sequence[Block], health_ms: Sequence[float]) -> dict[str, Any]:
    ttft = {
        name: percentiles([t for block in blocks for t in block.ttft_ms])
        for name, blocks in (("gateway", gateway), ("engine", engine))
    }
    pairs = list(zip(gateway, engine, strict=True))
    added = [statistics.median(g.ttft_ms) - statistics.median(e.ttft_ms) for g, e in pairs]
    ratios = [g.tokens_per_s / e.tokens_per_s for g, e in pairs]
    return {
        "requests": sum(len(block.answers) for block in gateway),
        "added_ttft_ms": {p: ttft["gateway"][p] - ttft["engine"][p] for p in ("p50", "p99")},
        "added_ttft_p50_spread_ms": spread(added),
        "ttft_ms": ttft,
        "health_ms": percentiles(health_ms),
        "throughput_ratio": statistics.median(ratios),
        "throughput_ratio_spread": spread(ratios),
        "tokens_per_s": {
            "gateway": statistics.median(g.tokens_per_s for g in gateway),
            "engine": statistics.median(e.tokens_per_s for e in engine),
        },
    }


def percentiles(values: Sequence[float]) -> dict[str, float]:
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {"p50": cuts[49], "p99": cuts[98]}


def spread(values: Sequence[float]) -> list[float]:
    deciles = statistics.quantiles(values, n=10, method="inclusive")
    return [deciles[0], deciles[-1]]


async def measure_mode(proxy: str, *, is_quick: bool, port: int) -> list[dict[str, Any]]:
    rows = []
    rounds = 6 if is_quick else 14
    with tempfile.TemporaryDirectory(prefix="gateway-overhead-") as folder:
        fleet_file = write_fleet(Path(folder), proxy=proxy, port=port)
        async with AsyncExitStack() as stack:
            url = stack.enter_context(running_fleet(fleet_file)).url
            direct = await stack.enter_async_context(DirectEngine(fleet_file))
            gateway = await stack.enter_async_context(Gateway(url))
            for model in MODELS:
                for streams in STREAMS:
                    requests = 14 if streams == 1 else 4 * streams
                    row = await measure(gateway, direct, model=model, streams=streams, rounds=rounds, requests=requests)
                    rows.append({"proxy": proxy} | row)
    return rows


COLUMNS: Mapping[str, str] = {
    "proxy": "{proxy}",
    "model": "{model}",
    "streams": "{streams}",
    "engine TTFT": "{ttft_ms[engine][p50]:.1f}",
    "added p50": "{added_ttft_ms[p50]:.1f}",
    "p10..p90": "{added_ttft_p50_spread_ms[0]:.1f}..{added_ttft_p50_spread_ms[1]:.1f}",
    "p99": "{added_ttft_ms[p99]:.1f}",
    "/health p50": "{health_ms[p50]:.1f}",
    "tokens per s": "{tokens_per_s[gateway]:.0f}",
    "of the engine's": "{throughput_ratio:.2f}",
    "p10..p90 ": "{throughput_ratio_spread[0]:.2f}..{throughput_ratio_spread[1]:.2f}",
}


def main() -> None:
    parser = make_parser(__doc__, quick="fewer rounds")
    parser.add_argument("--proxy", choices=("python", "haproxy"), help="only this mode of Serve")
    args = parser.parse_args()
    proxies = [args.proxy] if args.proxy else ["python", "haproxy"]
    rows: list[dict[str, Any]] = []
    for index, proxy in enumerate(proxies):
        rows += uvloop.run(measure_mode(proxy, is_quick=args.quick, port=FIRST_PORT + index))
    print_table(rows, COLUMNS, title="what gateway and actor add to an engine (times in ms)")
    setting = {"prompt_characters": PROMPT_CHARACTERS, "output_tokens": OUTPUT_TOKENS, "device": "simulated H200"}
    write_report(args.json, machine_facts(), rows, setting=setting)


if __name__ == "__main__":
    main()
