"""What breaks a fleet so that each alert of the chart fires."""

import asyncio
import signal
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import count

import httpx
import psutil
from fleet_process import FleetProcess, command_line

MODEL = "alpha"
ENGINE = "pdmux_actor.serving.process"
CONTROLLER = "ServeReplica:control:Controller"
SERVES_CONTROLLER = "ray::ServeController"
_NEIGHBOUR = "beta"
_LONG_TOKENS, _LONG_CLIENTS = 4000, 3
_CACHED_TOKENS = 1000
_LOOK_S = 0.05
_AGAIN_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """`strike` breaks and goes on breaking until it is cancelled. `clients` ask without a pause meanwhile. One that
    `needs_peace` begins when all units are well.
    """

    name: str
    alerts: frozenset[str]
    strike: Callable[[FleetProcess], Awaitable[None]]
    clients: int = 4
    max_tokens: int = 40
    needs_peace: bool = True


def _found(fleet: FleetProcess, title: str) -> list[psutil.Process]:
    return [p for p in fleet.processes() if title in command_line(p)]


async def kill_an_engine(fleet: FleetProcess) -> None:
    """Under load: what it worked on goes on elsewhere. Again when it is back, if it had no work."""
    while True:
        _found(fleet, ENGINE)[0].kill()
        await asyncio.sleep(_AGAIN_S)


async def nothing_but_load(fleet: FleetProcess) -> None:
    """More requests than the queue may hold, and answers many times as long as those that gateways have learned from:
    what was let in outgrows its token blocks.
    """


async def stop_controllers(fleet: FleetProcess) -> None:
    """The control loop hangs, and so does each that Serve puts in its place."""
    stopped: list[psutil.Process] = []
    try:
        while True:
            for process in _found(fleet, CONTROLLER):
                if process not in stopped:
                    process.send_signal(signal.SIGSTOP)
                    stopped.append(process)
            await asyncio.sleep(_LOOK_S)
    finally:
        for process in stopped:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)


async def stop_serves_controller(fleet: FleetProcess) -> None:
    """Serve's own controller hangs. Ray replaces no actor that hangs."""
    stopped = _found(fleet, SERVES_CONTROLLER)
    assert stopped, "it has another title now"
    try:
        for process in stopped:
            process.send_signal(signal.SIGSTOP)
        await asyncio.Event().wait()
    finally:
        for process in stopped:
            process.send_signal(signal.SIGCONT)


async def lock_the_state(fleet: FleetProcess) -> None:
    """Another program has the control loop's file."""
    with closing(sqlite3.connect(fleet.file.parent / "chaos.sqlite3", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        await asyncio.Event().wait()


async def kill_engines_as_they_come(fleet: FleetProcess) -> None:
    """No engine lives long enough to serve, as when its device is broken."""
    while True:
        for process in _found(fleet, ENGINE):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        await asyncio.sleep(_LOOK_S)


async def spoil_a_checkpoint(fleet: FleetProcess) -> None:
    """A file of a model is cut off, and its units have to load it anew."""
    file = fleet.file.parent / MODEL / "tokenizer.json"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    try:
        for process in _found(fleet, ENGINE):
            process.kill()
        await asyncio.Event().wait()
    finally:
        file.write_bytes(whole)


async def long_prompts_of_a_neighbour(fleet: FleetProcess) -> None:
    """Another model of the same units prefills thousands of tokens again and again, and is asked for little else."""
    clients = (keep_asking(fleet.url, n, 1, model=_NEIGHBOUR, prompt_tokens=_LONG_TOKENS) for n in range(_LONG_CLIENTS))
    await asyncio.gather(*clients)


async def end_the_fleet(fleet: FleetProcess) -> None:
    """All that listens at its address is gone."""
    await asyncio.to_thread(fleet.kill)


FAULTS = (
    Fault(
        name="overload",
        alerts=frozenset(
            {"MuxfleetRequestsShed", "MuxfleetSloBurnFast", "MuxfleetSloBurnSlow", "MuxfleetQuotaExhausted"}
        ),
        strike=nothing_but_load,
        clients=160,
        max_tokens=600,
    ),
    Fault(name="engine killed", alerts=frozenset({"MuxfleetUnitsLost"}), strike=kill_an_engine, clients=6),
    Fault(name="control loop hung", alerts=frozenset({"MuxfleetTelemetryStale"}), strike=stop_controllers),
    Fault(name="Serve hung", alerts=frozenset({"MuxfleetServeSilent"}), strike=stop_serves_controller),
    Fault(name="state file locked", alerts=frozenset({"MuxfleetStateNotKept"}), strike=lock_the_state),
    Fault(
        name="engines die as they start",
        alerts=frozenset({"MuxfleetUnitDown", "MuxfleetServerErrors"}),
        strike=kill_engines_as_they_come,
    ),
    Fault(name="checkpoint spoiled", alerts=frozenset({"MuxfleetModelNotLoaded"}), strike=spoil_a_checkpoint),
    Fault(
        name="fleet ended",
        alerts=frozenset({"MuxfleetGatewayDown"}),
        strike=end_the_fleet,
        clients=0,
        needs_peace=False,
    ),
)
"""In the order in which one fleet can bear them."""

NEIGHBOUR = Fault(
    name="neighbour with long prompts",
    alerts=frozenset({"MuxfleetNeighbourSlowdown"}),
    strike=long_prompts_of_a_neighbour,
)
"""For a fleet of its own, where prefills come before all decodes and no unit has room to part the two."""


async def keep_asking(url: str, number: int, max_tokens: int, *, model: str = MODEL, prompt_tokens: int = 41) -> None:
    """One client. A refusal is answered with a short pause, which is shorter than it was asked for. A long prompt is
    another one each time: no unit has it in its prefix cache.
    """
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=120, limits=limits, trust_env=False) as http:
        for turn in count():
            own = [turn % 200, number] if prompt_tokens > _CACHED_TOKENS else [7 + number % 4]
            prompt = [*own, *(20 + i % 40 for i in range(prompt_tokens - len(own)))]
            body = {"model": model, "prompt": prompt, "max_tokens": max_tokens}
            pause_s = 0.0
            try:
                answer = await http.post(f"{url}/v1/completions", json={**body, "temperature": 0, "ignore_eos": True})
                pause_s = 0.0 if answer.status_code == 200 else 0.5
            except httpx.HTTPError:
                pause_s = 0.5
            await asyncio.sleep(pause_s)
