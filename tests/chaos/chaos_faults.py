"""Faults, and how a fleet is seen to be well again."""

import asyncio
import re
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import httpx
import psutil
from chaos_load import MODELS
from fleet_process import FleetProcess, command_line

from deploy.fleet_file.section import WatchSection
from deploy.fleet_file.settings import GatewaySection
from deploy.inspection.fleet_report import fleet_events

_RECOVER_S = 120.0
_ENGINE = "pdmux_actor.serving.process"
_GATEWAY = "ServeReplica:gateway:Gateway"
_CONTROLLER = "ServeReplica:control:Controller"
_PAGE_BYTES = 4096
_LONG_PROMPTS = 24
_TOLD_S = 20.0
_RUNNING = r'^muxfleet_num_requests_running\{.*unit="(.*?)".*\} (\S+)$'


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """`breaks_connections`: it kills what clients are connected to, so theirs may break; nothing else may be lost.
    `takes_units`: others come in their place. `silence_s`: no stream is silent for so long.
    """

    name: str
    strike: Callable[[FleetProcess], Awaitable[None]]
    breaks_connections: bool = False
    takes_units: bool = False
    silence_s: float | None = None


def processes(fleet: FleetProcess, title: str) -> list[psutil.Process]:
    return sorted((p for p in fleet.processes() if title in command_line(p)), key=lambda p: p.pid)


async def kill_engine(fleet: FleetProcess) -> None:
    """As the kernel does when memory runs out. That of the unit that works on most requests: prefixes keep requests
    together, so another one may have none.
    """
    until_s = time.monotonic() + _TOLD_S
    async with httpx.AsyncClient(timeout=10, trust_env=False) as http:
        while True:
            text = (await http.get(f"{fleet.url}/metrics")).text
            units = Counter[str]()
            for unit, running in re.findall(_RUNNING, text, re.MULTILINE):
                units[unit] += int(float(running))
            ((unit, running),) = units.most_common(1)
            if running:
                break
            assert time.monotonic() < until_s, "no unit works on anything"
            await asyncio.sleep(0.05)
        reports = [u["report"] for u in (await http.get(f"{fleet.url}/fleet")).json()["units"]]
    (port,) = [int(r["endpoint"].rpartition(":")[2]) for r in reports if r["unit_id"] == unit]
    for engine in processes(fleet, _ENGINE):
        actor = engine.parent()
        if actor is not None and any(c.laddr.port == port for c in actor.net_connections() if c.status == "LISTEN"):
            engine.kill()
            return
    raise AssertionError(f"no process of unit {unit} listens on port {port}")


async def exhaust_memory(fleet: FleetProcess) -> None:
    """An engine gets no more memory from the system, and then long prompts: what asks for some raises MemoryError. The
    prompts are answered all the same.
    """
    engine = processes(fleet, _ENGINE)[0]
    engine.rlimit(psutil.RLIMIT_AS, (_PAGE_BYTES, _PAGE_BYTES))
    async with httpx.AsyncClient(base_url=fleet.url, timeout=_RECOVER_S, trust_env=False) as http:
        answers = await asyncio.gather(*(_ask_long(http, number) for number in range(_LONG_PROMPTS)))
    assert [a.status_code for a in answers] == [200] * _LONG_PROMPTS, [a.text for a in answers]
    assert not engine.is_running(), "it had memory enough"


async def _ask_long(http: httpx.AsyncClient, number: int) -> httpx.Response:
    prompt = [number, *range(30, 60)] * 256
    return await http.post(
        "/v1/completions", json={"model": MODELS[number % len(MODELS)], "prompt": prompt, "max_tokens": 1}
    )


async def kill_actor(fleet: FleetProcess) -> None:
    parent = processes(fleet, _ENGINE)[0].parent()
    assert parent is not None
    parent.kill()


async def kill_two_units(fleet: FleetProcess) -> None:
    for engine in processes(fleet, _ENGINE)[:2]:
        engine.kill()


async def kill_controller(fleet: FleetProcess) -> None:
    processes(fleet, _CONTROLLER)[0].kill()


async def kill_gateway(fleet: FleetProcess) -> None:
    processes(fleet, _GATEWAY)[0].kill()


async def cut_telemetry(fleet: FleetProcess) -> None:
    """The control loop hears and says nothing for longer than a view counts as fresh."""
    await _freeze(processes(fleet, _CONTROLLER)[0], 7.0)


async def slow_unit(fleet: FleetProcess) -> None:
    """An engine that runs a fifth of the time."""
    engine = processes(fleet, _ENGINE)[0]
    for _ in range(6):
        await _freeze(engine, 0.4)
        await asyncio.sleep(0.1)


async def stop_engine(fleet: FleetProcess) -> None:
    """For good, as one that waits for a GPU that never answers: its actor must kill it."""
    await _stop_until_gone(processes(fleet, _ENGINE)[0])


async def stop_actor(fleet: FleetProcess) -> None:
    """For good: Serve must replace it."""
    actor = processes(fleet, _ENGINE)[0].parent()
    assert actor is not None
    await _stop_until_gone(actor)


async def stop_controller(fleet: FleetProcess) -> None:
    """For good: Serve must replace it."""
    await _stop_until_gone(processes(fleet, _CONTROLLER)[0])


async def _stop_until_gone(process: psutil.Process) -> None:
    process.send_signal(signal.SIGSTOP)
    until_s = time.monotonic() + _RECOVER_S
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until_s, f"nobody has replaced {process}"
        await asyncio.sleep(0.1)


async def _freeze(process: psutil.Process, span_s: float) -> None:
    process.send_signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(span_s)
    finally:
        process.send_signal(signal.SIGCONT)


FAULTS = (
    Fault(name="engine killed", strike=kill_engine, takes_units=True),
    Fault(name="unit out of memory", strike=exhaust_memory, takes_units=True),
    Fault(name="actor killed", strike=kill_actor, takes_units=True),
    Fault(name="controller killed", strike=kill_controller),
    Fault(name="telemetry cut", strike=cut_telemetry),
    Fault(name="slow unit", strike=slow_unit),
    Fault(name="engine hung", strike=stop_engine, takes_units=True, silence_s=WatchSection().kill_s),
    Fault(name="actor hung", strike=stop_actor, takes_units=True, silence_s=GatewaySection().unit_lost_s),
    Fault(name="controller hung", strike=stop_controller),
    Fault(name="gateway killed", strike=kill_gateway, breaks_connections=True),
    Fault(name="two units killed", strike=kill_two_units, takes_units=True),
)


async def unit_ids(fleet: FleetProcess) -> frozenset[str]:
    async with httpx.AsyncClient(timeout=30, trust_env=False) as http:
        return _ids((await http.get(f"{fleet.url}/fleet")).json())


async def until_well(fleet: FleetProcess, *, units: int = 3, other_than: frozenset[str] = frozenset()) -> float:
    """How long it took until every model had its two replicas ready on so many units that report, not all of them among
    `other_than`.
    """
    began_s = time.monotonic()
    state: object = None
    async with httpx.AsyncClient(timeout=10, trust_env=False) as http:
        while time.monotonic() - began_s < _RECOVER_S:
            try:
                response = await http.get(f"{fleet.url}/fleet")
                state = response.json()
                all_ready = response.status_code == 200 and is_well(state, units)
                if all_ready and not _ids(state) <= other_than:
                    return time.monotonic() - began_s
            except (httpx.HTTPError, ValueError) as error:
                state = error
            await asyncio.sleep(0.1)
    raise AssertionError(f"not well after {_RECOVER_S:g} s: {state}\n{fleet.output}")


def _ids(state: object) -> frozenset[str]:
    assert isinstance(state, dict)
    return frozenset(u["report"]["unit_id"] for u in state["units"])


def is_well(state: object, units: int) -> bool:
    assert isinstance(state, dict)
    if any(u["silent_s"] > 1.5 or u["report"]["is_leaving"] for u in state["units"]):
        return False
    fresh = [u["report"] for u in state["units"]]
    ready = [s["model"] for r in fresh for s in r["models"] if s["phase"] == "ready"]
    return len(fresh) == units and all(ready.count(m) == 2 for m in MODELS)


async def until_balanced(fleet: FleetProcess) -> None:
    """No gateway's ledger holds a block and no unit runs or queues anything."""
    until_s = time.monotonic() + 90.0
    clean = 0
    left: list[str] = []
    async with httpx.AsyncClient(timeout=10, trust_env=False) as http:
        while time.monotonic() < until_s and clean < 6:  # the proxy sends each look to either gateway
            text = (await http.get(f"{fleet.url}/metrics")).text
            held = re.findall(r'^muxfleet_ledger_blocks\{.*state="held".*\} ([0-9.e+]+)$', text, flags=re.MULTILINE)
            assert held, "the ledger's metric has another name now"
            busy = re.findall(
                r"^muxfleet_num_requests_(?:running|waiting)\{.*\} ([0-9.e+]+)$", text, flags=re.MULTILINE
            )
            left = [*held, *busy]
            clean = clean + 1 if not any(map(float, left)) else 0
            await asyncio.sleep(0.2)
    assert clean >= 6, f"still held or running: {left}"


def continuations(fleet: FleetProcess) -> int:
    """Generations that lost their unit and went on, as the gateways have counted them."""
    text = httpx.get(f"{fleet.url}/metrics", timeout=30, trust_env=False).text
    found = re.findall(r"^muxfleet_generation_continuations_total\{.*\} ([0-9.e+]+)$", text, flags=re.MULTILINE)
    assert found, "the counter has another name now"
    return int(sum(map(float, found)))


def events_of_requests(fleet: FleetProcess, *, since_s: int, moved: int) -> Counter[str]:
    """Events of the flight recorder by kind, once it tells of so many moved requests, or all that it told in time:
    gateways pass on what is beyond their limits after ten seconds.
    """
    until_s = time.monotonic() + _TOLD_S
    while True:
        told = Counter[str]()
        for event in fleet_events(fleet.url, since_s=int(time.time()) - since_s + 1):
            told[event.kind.value] += event.count
        if told["request_moved"] >= moved or time.monotonic() > until_s:
            return told
        time.sleep(0.5)
