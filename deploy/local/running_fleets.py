"""Notes which fleets `muxfleet up` runs on this machine, and how to reach their clusters.

There is a file per fleet, which only its owner can read.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil

from deploy.errors import FleetNotNamed, FleetUnreachable
from deploy.owner_file import replace_for_owner


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningFleet:
    """`auth_token` lets into the Ray cluster at `address`."""

    name: str
    url: str
    address: str
    auth_token: str
    pid: int
    started_s: float


@contextmanager
def announced(folder: Path, fleet: RunningFleet) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = folder / f"{fleet.pid}.json"
    replace_for_owner(file, msgspec.json.encode(fleet))
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def keep_applied(folder: Path, fleet: RunningFleet, fleet_file: str) -> None:
    """Keeps what `muxfleet apply` made of a fleet."""
    replace_for_owner(_applied(folder, fleet.pid, fleet.started_s), fleet_file.encode())


def take_applied(folder: Path) -> str | None:
    """Takes what `keep_applied` kept for the fleet that this process runs, or ran before; it is not there
    afterwards.
    """
    file = _applied(folder, os.getpid(), this_process_started_s())
    try:
        kept = file.read_text()
    except OSError:  # nothing was kept; whether the folder is any use is for others to say
        return None
    file.unlink(missing_ok=True)
    return kept


def _applied(folder: Path, pid: int, started_s: float) -> Path:
    return folder / f"{pid}-{started_s:.0f}.applied"


def running_fleets(folder: Path) -> Sequence[RunningFleet]:
    """Returns the fleets whose process is alive; what others left behind is removed."""
    found = []
    for file in sorted(folder.glob("*.json")):
        try:
            fleet = msgspec.json.decode(file.read_bytes(), type=RunningFleet)
        except (OSError, msgspec.DecodeError):  # it is just being written or removed, or of another version
            continue
        if is_alive(fleet):
            found.append(fleet)
        else:
            _applied(folder, fleet.pid, fleet.started_s).unlink(missing_ok=True)
            file.unlink(missing_ok=True)
    return found


def find_fleet(folder: Path, name: str) -> RunningFleet:
    """Raises FleetUnreachable: none of that name runs here, or several do."""
    fleets = running_fleets(folder)
    named = [f for f in fleets if f.name == name]
    if len(named) == 1:
        return named[0]
    if named:
        urls = ", ".join(f.url for f in named)
        raise FleetUnreachable(address=name, reason=f"several fleets of that name run here ({urls}); stop all but one")
    others = ", ".join(sorted({f.name for f in fleets})) or "none"
    raise FleetUnreachable(
        address=name,
        reason=f"no fleet of that name runs here (running: {others}); start it with `muxfleet up`, or set RAY_ADDRESS "
        "to the cluster it runs in",
    )


def only_fleet(folder: Path) -> RunningFleet:
    """Raises FleetUnreachable: none runs here; FleetNotNamed: several do."""
    fleets = running_fleets(folder)
    if len(fleets) == 1:
        return fleets[0]
    if fleets:
        raise FleetNotNamed(fleets=sorted(f.name for f in fleets))
    reason = "no fleet runs here; start one with `muxfleet up`, or set RAY_ADDRESS to the cluster it runs in"
    raise FleetUnreachable(address="this machine", reason=reason)


def is_alive(fleet: RunningFleet) -> bool:
    try:
        return abs(psutil.Process(fleet.pid).create_time() - fleet.started_s) < 1.0
    except psutil.NoSuchProcess:
        return False


def this_process_started_s() -> float:
    return psutil.Process().create_time()
