"""One cell of the table of faults: a process of a fleet under load, what befalls it, and what clients saw of it."""

import asyncio
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import psutil

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "e2e"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "chaos"))

from chaos_faults import is_well, processes
from chaos_fleet_file import fleet_of
from chaos_load import Load
from fleet_process import FleetProcess
from fleets.running_fleet import running_fleet

STOPPED_S = 60.0
_PORT = 20471
_STARVED_S = 30.0
_WELL_FOR_S = 6.0
_PATIENCE_S = 150.0
_POLL_S = 0.2
_PAGE_BYTES = 4096

# What the command line of the process holds. The actor is the engine's parent.
PROCESSES: Mapping[str, str] = MappingProxyType(
    {
        "engine": "pdmux_actor.serving.process",
        "actor": "pdmux_actor.serving.process",
        "gateway": "ServeReplica:gateway:Gateway",
        "controller": "ServeReplica:control:Controller",
        "Serve proxy": "ray::ProxyActor",
        "Serve controller": "ray::ServeController",
        "raylet": "raylet/raylet",
        "GCS": "gcs_server",
        "dashboard agent": "ray::DashboardAgent",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """`lost`: answered not at all, or cut. `refused`: told to come again, or nobody listened. `repeated`: other tokens
    than in peace. `silent_s`: the longest time that a client heard nothing. `back_s`: from the fault until all was as
    before; None: not while it was watched.
    """

    requests: int
    lost: int
    refused: int
    repeated: int
    silent_s: float
    back_s: float | None
    died: bool


def running(folder: Path, **how: Any) -> AbstractContextManager[FleetProcess]:  # noqa: ANN401  as running_fleet takes
    return running_fleet(fleet_of(folder, port=_PORT), **how)


class MissingProcess(LookupError):
    """The fleet runs no such process."""


def find(fleet: FleetProcess, name: str) -> psutil.Process:
    found = processes(fleet, PROCESSES[name])
    if not found:
        raise MissingProcess(name)
    victim = found[0].parent() if name == "actor" else found[0]
    assert victim is not None
    return victim


async def kill(victim: psutil.Process) -> None:
    victim.kill()


async def stop(victim: psutil.Process) -> None:
    victim.send_signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(STOPPED_S)
    finally:
        if victim.is_running():
            victim.send_signal(signal.SIGCONT)


async def starve(victim: psutil.Process) -> None:
    """It gets no more memory from the system until it dies of that, or for a while."""
    before = victim.rlimit(psutil.RLIMIT_AS)
    victim.rlimit(psutil.RLIMIT_AS, (_PAGE_BYTES, before[1]))
    until_s = time.monotonic() + _STARVED_S
    while time.monotonic() < until_s and is_alive(victim):  # noqa: ASYNC110  another process sets no event
        await asyncio.sleep(_POLL_S)
    if is_alive(victim):
        victim.rlimit(psutil.RLIMIT_AS, before)


FAULTS: Mapping[str, Callable[[psutil.Process], Awaitable[None]]] = MappingProxyType(
    {"killed": kill, f"stopped {STOPPED_S:.0f} s": stop, "out of memory": starve}
)


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def measure(fleet: FleetProcess, load: Load, strike: Callable[[], Awaitable[None]], died: Callable[[], bool]) -> Cell:
    """The fault strikes while clients ask; they go on until all has been as before for a while."""
    back_s: list[float | None] = []

    async def trouble() -> None:
        began_s = time.monotonic()
        striking = asyncio.create_task(_noted(strike()))
        back_s.append(await _back_after(fleet, striking, began_s))

    run = load.through(trouble)
    refused = [a for a in run.answers if not a.was_accepted or (a.ends and not a.ends["length"])]
    cut = [a for a in run.lost() if not any(a is other for other in refused)]
    return Cell(
        requests=len(run.answers),
        lost=len(cut),
        refused=len(refused),
        repeated=len(run.wrong()),
        silent_s=round(run.longest_silence_s(), 1),
        back_s=back_s[0],
        died=died(),
    )


async def _noted(strike: Awaitable[None]) -> None:
    with suppress(psutil.NoSuchProcess):  # it was replaced while it was stopped
        await strike


async def _back_after(fleet: FleetProcess, striking: asyncio.Task[None], began_s: float) -> float | None:
    unwell_s = began_s
    async with httpx.AsyncClient(timeout=2, trust_env=False) as http:
        while (now_s := time.monotonic()) < began_s + _PATIENCE_S:
            if not await _looks_well(http, fleet):
                unwell_s = time.monotonic()
            elif striking.done() and now_s - max(unwell_s, began_s) > _WELL_FOR_S:
                await striking
                return round(unwell_s - began_s, 1)
            await asyncio.sleep(_POLL_S)
    await striking
    return None


async def _looks_well(http: httpx.AsyncClient, fleet: FleetProcess) -> bool:
    try:
        response = await http.get(f"{fleet.url}/fleet")
        return response.status_code == 200 and is_well(response.json(), 3)
    except (httpx.HTTPError, ValueError):
        return False
