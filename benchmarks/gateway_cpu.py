"""What a streamed chat costs a gateway in CPU time, without Ray, proxy, unit and engine.

    python benchmarks/gateway_cpu.py [--json FILE] [--quick] [--streams N] [--tokens-per-delta N] [--profile FILE]

This process is the gateway: its application under uvicorn and uvloop, as a replica of Serve's has it. A process beside
it plays the unit, which says a token to each of its streams every few milliseconds, all of a step in one write; another
one plays the clients. CPU time is the kernel's count for this process, and for the process that works on its text.
"""

import asyncio
import contextlib
import cProfile
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import psutil
import uvicorn
import uvloop
from fleets.byte_checkpoint import write_checkpoint
from load.sse_client import SseConnection, ask_in_turn
from report.command import make_parser, print_table, write_report
from report.machine_facts import machine_facts

from pdmux_actor.lease import ModelPhase, ModelStatus, UnitReport
from pdmux_actor.messages import FinishReason, Slo
from pdmux_actor.serving.frames import (
    Cancel,
    Credit,
    Delta,
    FrameReader,
    Generate,
    Hello,
    Ping,
    ToUnit,
    Welcome,
    encode,
)
from router.http.app import create_app
from router.serving.gateway import Gateway
from router.view import FleetView, ModelCard, UnitView

MODEL, TOKEN, OUTPUT_TOKENS = "m", "stream-token", 64
SLO = Slo(ttft_s=10.0, tbt_s=1.0)
STEP_S = 0.005
_SHAPE = (2, 64, 128, 4, 2, 16)


class SteppingUnit(asyncio.Protocol):
    """The unit's end of one gateway's connection. `_left` are the tokens that each stream has still to say."""

    def __init__(self, tokens_per_delta: int) -> None:
        self._tokens_per_delta = tokens_per_delta
        self._frames: FrameReader[ToUnit] = FrameReader(ToUnit)
        self._left: dict[int, int] = {}
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        for message in self._frames.feed(data):
            match message:
                case Hello():
                    self._transport.write(encode(Welcome(unit_id="u")))
                case Generate(stream=stream, request=request):
                    self._left[stream] = request.sampling.max_tokens
                case Ping():
                    self._transport.write(encode(Ping()))
                case Cancel(stream=stream):
                    self._left.pop(stream, None)
                case Credit():
                    pass  # no stream is longer than the first credit

    def step(self) -> None:
        said = b""
        for stream, left in list(self._left.items()):
            new = min(left, self._tokens_per_delta)
            sequence = (OUTPUT_TOKENS - left) // self._tokens_per_delta
            finish = FinishReason.LENGTH if new == left else None
            delta = Delta(stream=stream, sequence=sequence, text=" word" * new, token_ids=[7] * new, finish=finish)
            said += encode(delta)
            self._left[stream] = left - new
            if finish is not None:
                del self._left[stream]
        if said and self._transport is not None:
            self._transport.write(said)


async def play_unit(tokens_per_delta: int) -> None:
    loop = asyncio.get_running_loop()
    units: list[SteppingUnit] = []

    def connected() -> SteppingUnit:
        units.append(SteppingUnit(tokens_per_delta))
        return units[-1]

    server = await loop.create_server(connected, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    while True:
        await asyncio.sleep(STEP_S)
        for unit in units:
            unit.step()


async def play_clients(port: int, streams: int) -> None:
    """Asks as often as each line of its input says, and tells when that is done."""
    connections = [await SseConnection.open("127.0.0.1", port) for _ in range(streams)]
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        left = iter(range(int(line)))
        asked = [ask_in_turn(c, left, model=MODEL, output_tokens=OUTPUT_TOKENS) for c in connections]
        await asyncio.gather(*asked)
        print("done", flush=True)


def _view(folder: Path, port: int) -> FleetView:
    card = ModelCard(model=MODEL, source=str(folder), revision=None, slo=SLO, created_s=0)
    report = UnitReport(
        unit_id="u",
        node="n",
        pool="p",
        num_gpus=1,
        endpoint=f"127.0.0.1:{port}",
        memory_bytes=1,
        block_bytes=1,
        total_blocks=1 << 20,
        lease_version=1,
        models=(ModelStatus(model=MODEL, phase=ModelPhase.READY, max_model_len=4096),),
    )
    return FleetView(models=(card,), units=(UnitView(report=report, age_s=0.1),), stream_token=TOKEN)


@contextlib.asynccontextmanager
async def _served(gateway: Gateway) -> AsyncIterator[int]:
    config = uvicorn.Config(create_app(gateway), port=0, log_level="warning", access_log=False, lifespan="on")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await serving


@contextlib.contextmanager
def _beside(*arguments: object) -> "Iterator[subprocess.Popen[str]]":
    command = [sys.executable, __file__, *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def measure(
    folder: Path, *, streams: int, tokens_per_delta: int, rounds: int, profile: Path | None
) -> list[dict[str, Any]]:
    gateway = Gateway()
    rows = []
    with _beside("--unit", tokens_per_delta) as unit:
        assert unit.stdout is not None
        gateway.update_view(_view(folder, int(unit.stdout.readline())))
        async with _served(gateway) as port:
            with _beside("--clients", port, streams) as clients:
                for number in range(-1, rounds):  # the first round warms up
                    profiler = cProfile.Profile() if profile is not None and number == rounds - 1 else None
                    rows += await _round(clients, 6 * streams, profiler, is_counted=number >= 0)
                    if profiler is not None:
                        profiler.dump_stats(str(profile))
    return rows


async def _round(
    clients: "subprocess.Popen[str]", requests: int, profiler: cProfile.Profile | None, *, is_counted: bool
) -> list[dict[str, Any]]:
    assert clients.stdin is not None
    assert clients.stdout is not None
    clients.stdin.write(f"{requests}\n")
    clients.stdin.flush()
    before_s, text_before_s = time.process_time(), _text_cpu_s()
    if profiler is not None:
        profiler.enable()
    told = await asyncio.get_running_loop().run_in_executor(None, clients.stdout.readline)
    if profiler is not None:
        profiler.disable()
    spent_s, text_s = time.process_time() - before_s, _text_cpu_s() - text_before_s
    if told != "done\n":
        raise SystemExit("the clients have ended before all was answered: there is no figure; why stands above")
    if not is_counted:
        return []
    return [{"gateway_ms": 1e3 * spent_s / requests, "text_ms": 1e3 * text_s / requests}]


def _text_cpu_s() -> float:
    spent = 0.0
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "router.text.worker" in child.cmdline():
                times = child.cpu_times()
                spent += times.user + times.system
    return spent


COLUMNS: Mapping[str, str] = {
    "streams": "{streams}",
    "tokens per Delta": "{tokens_per_delta}",
    "gateway ms": "{gateway_ms:.2f}",
    "least..most": "{least_ms:.2f}..{most_ms:.2f}",
    "text process ms": "{text_ms:.2f}",
}


def main() -> None:
    if sys.argv[1:2] == ["--unit"]:
        return uvloop.run(play_unit(int(sys.argv[2])))
    if sys.argv[1:2] == ["--clients"]:
        return uvloop.run(play_clients(int(sys.argv[2]), int(sys.argv[3])))
    parser = make_parser(__doc__, quick="fewer rounds")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens-per-delta", type=int, default=1)
    parser.add_argument("--profile", type=Path, help="for pstats: what the last round runs through")
    args = parser.parse_args()
    if min(args.streams, args.tokens_per_delta) < 1:
        parser.error("--streams and --tokens-per-delta take numbers above 0")
    with tempfile.TemporaryDirectory(prefix="gateway-cpu-") as made:
        folder = Path(made) / MODEL
        write_checkpoint(folder, _SHAPE)
        rounds = 4 if args.quick else 12
        how = {"streams": args.streams, "tokens_per_delta": args.tokens_per_delta}
        measured = uvloop.run(measure(folder, **how, rounds=rounds, profile=args.profile))
    counted = measured[:-1] if args.profile is not None else measured
    spent = [row["gateway_ms"] for row in counted]
    row = {"gateway_ms": statistics.median(spent), "least_ms": min(spent), "most_ms": max(spent)}
    row |= {**how, "text_ms": statistics.median(one["text_ms"] for one in counted)}
    print_table([row], COLUMNS, title=f"CPU time of a streamed chat of {OUTPUT_TOKENS} tokens")
    write_report(args.json, machine_facts(), [row], setting={"requests_per_round": 6 * args.streams, "step_s": STEP_S})
    return None


if __name__ == "__main__":
    main()
