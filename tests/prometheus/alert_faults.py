"""What breaks a fleet so that each alert of the chart fires."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import httpx
import psutil
from fleet_process import FleetProcess, command_line

MODEL = "alpha"
ENGINE = "pdmux_actor.serving.process"
CONTROLLER = "ServeReplica:control:Controller"
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


async def kill_engines_as_they_come(fleet: FleetProcess) -> None:
    """No engine lives long enough to serve, as when its device is broken."""
    while True:
        for process in _found(fleet, ENGINE):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        await asyncio.sleep(_LOOK_S)


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
    Fault(
        name="engines die as they start",
        alerts=frozenset({"MuxfleetUnitDown", "MuxfleetServerErrors"}),
        strike=kill_engines_as_they_come,
    ),
    Fault(
        name="fleet ended",
        alerts=frozenset({"MuxfleetGatewayDown"}),
        strike=end_the_fleet,
        clients=0,
        needs_peace=False,
    ),
)
"""In the order in which one fleet can bear them."""

NOT_ON_ONE_MACHINE: dict[str, str] = {
    "MuxfleetNeighbourSlowdown": "models of this fleet share 384 MiB of KV and have 5 s for a first token: their "
    "requests wait at the gateways for blocks, not on a unit for another model's launches"
}
"""Alerts that no fault on one machine makes fire, and why not."""


async def keep_asking(url: str, number: int, max_tokens: int) -> None:
    """One client. A refusal is answered with a short pause, which is shorter than it was asked for."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=120, limits=limits, trust_env=False) as http:
        while True:
            body = {"model": MODEL, "prompt": [7 + number % 4, *range(20, 60)], "max_tokens": max_tokens}
            pause_s = 0.0
            try:
                answer = await http.post(f"{url}/v1/completions", json={**body, "temperature": 0, "ignore_eos": True})
                pause_s = 0.0 if answer.status_code == 200 else 0.5
            except httpx.HTTPError:
                pause_s = 0.5
            await asyncio.sleep(pause_s)
