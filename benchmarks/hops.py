"""Product files that a streamed chat request runs through, from HTTP to its last token, and how often it changes them.

    python benchmarks/hops.py [--json FILE] [--files] [--tokens N]

One process holds all of a fleet of one model: the gateway's ASGI application and the processes that it and the unit
start (they run as threads here, on the same sockets), the unit on an event loop of its own, and the engine on the
simulated executor in real time. `sys.setprofile` watches every call while the second request is answered; the first one
has loaded what is loaded once. A switch is a call or a return after which another product file runs on that thread.
What comes by the clock and not by the request (heartbeats, load reports, the watch over the engine) is left out.

Phases end when the gateway has encoded the request for the wire, when it lies in the engine's inbox, and when the last
byte has been sent. `decide` is the one in which the scheduler starts the prompt.
"""

import argparse
import asyncio
import json
import logging
import os
import queue
import shutil
import socket
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, cast

from fastapi import FastAPI
from fleets.byte_checkpoint import write_checkpoint
from rich.console import Console
from rich.table import Table

from pdmux_actor.backends.native import NativeEngine
from pdmux_actor.engine import EngineLoop, Inbox
from pdmux_actor.kv.prefix_cache import PrefixCache
from pdmux_actor.lease import Lease, ModelAssignment, ModelPhase
from pdmux_actor.messages import Slo
from pdmux_actor.scheduling.scheduler import Scheduler
from pdmux_actor.serving import frames, process
from pdmux_actor.serving.commands import EngineSettings
from pdmux_actor.serving.connection_heartbeat import ConnectionHeartbeat
from pdmux_actor.serving.engine_watch import EngineWatch
from pdmux_actor.serving.own_program import OwnProcess
from pdmux_actor.serving.unit import Unit
from router.http.app import create_app
from router.serving.gateway import Gateway
from router.text import worker
from router.text.lane import TextProcess
from router.view import FleetView, ModelCard, UnitView

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("traces", "profiler", "placement", "pdmux_actor", "router", "deploy")
MODEL, TOKEN, SLO = "m", "stream-token", Slo(ttft_s=10.0, tbt_s=1.0)
PROMPT = "How many rooms does a request cross before it is answered? " * 8
START_TIMEOUT_S = 60.0
WIRE, INBOX, ANSWER = "to the wire", "to the engine's inbox", "to the last token"
_REACHED_AFTER = {"unit": WIRE, "command-intake": WIRE, "MainThread": INBOX, "notice-sender": INBOX}


@dataclass(slots=True)
class _Thread:
    """What it does before the request `reaches` it comes by the clock: the engine wakes up to report its load."""

    reaches: str | None
    file: str = ""
    silent_depth: int = 0
    decide: "Trail | None" = None


@dataclass(slots=True)
class Trail:
    """What was run through: switches, and calls by file."""

    switches: int = 0
    calls: Counter[str] = field(default_factory=Counter)

    def row(self) -> dict[str, Any]:
        return {"files": len(self.calls), "switches": self.switches, "calls": dict(self.calls.most_common())}


class HopTracer:
    """`start` and `stop` around the request; `phases` are cumulative."""

    def __init__(self) -> None:
        self.phases: dict[str, Trail] = {}
        self.decides: list[tuple[Trail, Counter[int]]] = []  # with prefix look-ups by prompt
        self._all = Trail()
        self._looked_up: Counter[int] = Counter()
        self._files: dict[str, str] = {}  # by what the interpreter calls them; "" for those of others
        self._threads = threading.local()
        self._lock = threading.Lock()
        self._silent = {
            EngineLoop._report.__code__,
            EngineWatch.hear.__code__,
            EngineWatch.hang.__code__,
            EngineWatch.new_suspicion.__code__,
            EngineWatch.live.__code__,
            ConnectionHeartbeat._fire.__code__,
        }
        self._on = False

    def start(self) -> None:
        self._on = True

    def stop(self) -> None:
        self._on = False
        self._end_phase(ANSWER)

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        if not self._on or event not in ("call", "return"):
            return
        code = frame.f_code
        thread = self._thread()
        if thread.reaches is not None and thread.reaches not in self.phases:
            return
        if code in self._silent:
            thread.silent_depth += 1 if event == "call" else -1
            return
        if thread.silent_depth > 0:
            return
        file = self._product_file(code.co_filename)
        if event == "return":
            back = frame.f_back
            file = "" if back is None else self._product_file(back.f_code.co_filename)
        if not file:
            return
        with self._lock:
            self._note(thread, file, is_call=event == "call")
            if event == "call":
                self._note_mark(thread, frame)
            elif code is Scheduler.decide.__code__ and thread.decide is not None:
                self.decides.append((thread.decide, self._looked_up))
                thread.decide = None

    def _note(self, thread: _Thread, file: str, *, is_call: bool) -> None:
        switched = file != thread.file
        thread.file = file
        for trail in (self._all, thread.decide):
            if trail is not None:
                trail.switches += switched
                trail.calls[file] += is_call

    def _note_mark(self, thread: _Thread, frame: FrameType) -> None:
        code = frame.f_code
        if code is Scheduler.decide.__code__:
            thread.decide, self._looked_up = Trail(), Counter()
        elif code is PrefixCache.match.__code__:
            self._looked_up[id(frame.f_locals["known"])] += 1
        elif code is frames.encode.__code__ and isinstance(frame.f_locals["message"], frames.Generate):
            self._end_phase(WIRE)
        elif code is Inbox.put.__code__:
            self._end_phase(INBOX)

    def _end_phase(self, name: str) -> None:
        if name not in self.phases:
            self.phases[name] = Trail(self._all.switches, self._all.calls.copy())

    def _thread(self) -> _Thread:
        try:
            known: _Thread = self._threads.known
        except AttributeError:
            known = self._threads.known = _Thread(_REACHED_AFTER.get(threading.current_thread().name))
        return known

    def _product_file(self, name: str) -> str:
        file = self._files.get(name)
        if file is None:
            path = Path(name)
            inside = path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in PACKAGES
            file = self._files[name] = path.relative_to(ROOT).as_posix() if inside else ""
        return file


class _Stand:
    """In place of a process of ours: a thread of this one."""

    pid, returncode = 0, None

    def __init__(self) -> None:
        self.stderr = asyncio.StreamReader()

    async def wait(self) -> int:
        return await asyncio.get_running_loop().create_future()  # it ends with this process

    def kill(self) -> None:
        """Nothing of it is left behind."""


EngineCalls = queue.Queue[Sequence[str]]


def _engine_stand_in(engines: EngineCalls) -> Callable[..., Any]:
    """For asyncio.create_subprocess_exec. An engine runs on the main thread, where signals are."""

    async def start(*command: str, pass_fds: Sequence[int], **_: object) -> _Stand:
        engines.put([str(os.dup(pass_fds[0])), *command[-1:]])
        return _Stand()

    return start


async def _text_on_a_thread(_niceness: int) -> TextProcess:
    ours, theirs = socket.socketpair()
    threading.Thread(target=worker._serve, args=(theirs, worker.TextWorker()), name="text", daemon=True).start()
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    return TextProcess(OwnProcess(cast(Any, _Stand()), reader, writer))


async def _serve_unit(folder: Path, served: "queue.Queue[Unit]") -> None:
    settings = EngineSettings(kind="simulated", kv_pool_bytes=32 << 20, num_cores=2)
    unit = Unit(NativeEngine(settings), unit_id="u", node="n", pool="p", num_gpus=1)
    await unit.start()
    lent = ModelAssignment(model=MODEL, source=str(folder), quota_blocks=1000, slo=SLO)
    unit.apply_lease(Lease(version=1, models=(lent,), policy="mux", stream_token=TOKEN))
    async with asyncio.timeout(START_TIMEOUT_S):
        while unit.report().models[0].phase is not ModelPhase.READY or unit.report().load is None:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)
    served.put(unit)
    await asyncio.get_running_loop().create_future()


async def _chat(app: FastAPI, num_tokens: int) -> bytes:
    """One streamed completion, as an HTTP server hands it over."""
    document = {
        "model": MODEL,
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": num_tokens,
        "temperature": 0,
        "stream": True,
        "ignore_eos": True,
    }
    body, said, sent = json.dumps(document).encode(), asyncio.Event(), bytearray()
    parts = iter([{"type": "http.request", "body": body, "more_body": False}])
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/v1/chat/completions",
        "raw_path": b"/v1/chat/completions",
        "root_path": "",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }

    async def receive() -> MutableMapping[str, Any]:
        part = next(parts, None)
        if part is None:
            await said.wait()
            return {"type": "http.disconnect"}
        return part

    async def send(message: MutableMapping[str, Any]) -> None:
        assert message.get("status", 200) == 200, message
        sent.extend(message.get("body", b""))

    await app(scope, receive, send)
    assert sent.endswith(b"data: [DONE]\n\n"), bytes(sent)
    return bytes(sent)


async def _trace(folder: Path, unit: Unit, tracer: HopTracer, num_tokens: int) -> None:
    gateway = Gateway(start_text=_text_on_a_thread)
    card = ModelCard(model=MODEL, source=str(folder), revision=None, slo=SLO, created_s=0)
    view = FleetView(models=(card,), units=(UnitView(report=unit.report(), age_s=0.1),), stream_token=TOKEN)
    gateway.update_view(view)
    app = create_app(gateway)
    await _chat(app, num_tokens)
    await asyncio.sleep(0.1)  # what the first request left to do
    tracer.start()
    await _chat(app, num_tokens)
    tracer.stop()


def _run(folder: Path, engines: EngineCalls, tracer: HopTracer, arguments: argparse.Namespace) -> None:
    """Ends the process: what runs in it ends with it only."""
    code = 1
    try:
        served: queue.Queue[Unit] = queue.Queue()
        threading.Thread(target=lambda: asyncio.run(_serve_unit(folder, served)), name="unit", daemon=True).start()
        asyncio.run(_trace(folder, served.get(timeout=START_TIMEOUT_S), tracer, arguments.tokens))
        _report(tracer, arguments)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    shutil.rmtree(folder.parent)
    os._exit(code)


def _report(tracer: HopTracer, arguments: argparse.Namespace) -> None:
    starts = [(trail, looked) for trail, looked in tracer.decides if looked]
    decide = max((trail for trail, _ in starts), key=lambda trail: trail.switches)
    rows = {**tracer.phases, "one decide": decide}
    table = Table("phase", "files", "switches", title=f"a streamed chat request of {arguments.tokens} tokens")
    for name, trail in rows.items():
        table.add_row(name, str(len(trail.calls)), str(trail.switches))
    console = Console()
    console.print(table)
    most = max(looked.most_common(1)[0][1] for _, looked in starts)
    console.print(f"prefix look-ups of a prompt in one decision: {most} at most")
    if arguments.files:
        for name, trail in rows.items():
            console.print(f"\n{name}")
            for file, calls in sorted(trail.calls.items()):
                console.print(f"  {calls:5} {file}")
    if arguments.json is not None:
        document = {"phases": {name: trail.row() for name, trail in rows.items()}, "prefix_look_ups": most}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--files", action="store_true", help="name the files, with the calls into each")
    parser.add_argument("--tokens", type=int, default=16, metavar="N", help="to generate (16)")
    arguments = parser.parse_args()
    tracer, engines = HopTracer(), EngineCalls()
    asyncio.create_subprocess_exec = _engine_stand_in(engines)
    threading.setprofile(tracer)
    sys.setprofile(tracer)
    folder = Path(tempfile.mkdtemp(prefix="hops-")) / MODEL
    write_checkpoint(folder, (2, 64, 128, 4, 2, 16))
    threading.Thread(target=_run, args=(folder, engines, tracer, arguments), daemon=True).start()
    logging.basicConfig(level=logging.INFO)  # else the engine would send the gateway's lines to its actor
    process.main(engines.get(timeout=START_TIMEOUT_S))


if __name__ == "__main__":
    main()
