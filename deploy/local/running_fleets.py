"""Notes which fleets `muxfleet up` runs on this machine, and how to reach their clusters.

There is a file per fleet, which only its owner can read.
"""

import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil

from deploy.errors import FleetNotNamed, FleetUnreachable
from deploy.owner_file import replace_for_owner

_BOOT_ID = 36  # characters of a UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningFleet:
    """`auth_token` lets into the Ray cluster at `address`. Its process was started `started_s` after the machine's
    boot, of which `boot` is the name: the time of day may be set meanwhile. `machine` is "" where nobody can say.
    """

    name: str
    url: str
    address: str
    auth_token: str
    pid: int
    boot: str
    started_s: float
    machine: str = ""


@contextmanager
def announced(folder: Path, fleet: RunningFleet) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    running_fleets(folder)  # what others left behind goes
    file = folder / f"{fleet.boot}-{fleet.pid}.json"  # containers that share the folder have the same process ids
    replace_for_owner(file, msgspec.json.encode(fleet))
    try:
        yield
    finally:
        _remove(file)


def keep_applied(folder: Path, fleet: RunningFleet, fleet_file: str) -> None:
    """Keeps what `muxfleet apply` made of a fleet."""
    replace_for_owner(_applied(folder, fleet.boot, fleet.pid, fleet.started_s), fleet_file.encode())


def take_applied(folder: Path) -> str | None:
    """Takes what `keep_applied` kept for the fleet that this process runs, or ran before; it is not there
    afterwards.
    """
    file = _applied(folder, this_boot(), os.getpid(), process_started_s())
    try:
        kept = file.read_text(encoding="utf-8")
    except OSError:  # nothing was kept; whether the folder is any use is for others to say
        return None
    _remove(file)
    return kept


def _applied(folder: Path, boot: str, pid: int, started_s: float) -> Path:
    return folder / f"{boot}-{pid}-{started_s:.2f}.applied"


def running_fleets(folder: Path) -> Sequence[RunningFleet]:
    """Returns the fleets whose process is alive; what others left behind is removed, as is that of this machine's boots
    before. Of one of a machine or container that shares the folder nothing can be said: it stays.
    """
    found, here = [], this_boot()
    for file in sorted(folder.glob("*.json")):
        try:
            fleet = msgspec.json.decode(file.read_bytes(), type=RunningFleet)
        except (OSError, msgspec.DecodeError):  # it is just being written or removed, or of another version
            continue
        if fleet.boot != here and not _is_of_a_boot_before(fleet):
            continue
        if fleet.boot == here and is_alive(fleet):
            found.append(fleet)
        else:
            _remove(_applied(folder, fleet.boot, fleet.pid, fleet.started_s))
            _remove(file)
    return found


def _remove(file: Path) -> None:
    with suppress(OSError):  # gone already; or the folder cannot be written: nobody takes it for one that runs
        file.unlink()


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
        reason=f"no fleet of that name runs here (running: {others}; one that starts is found when it serves); start "
        "it with `muxfleet up`, or set RAY_ADDRESS to the cluster it runs in",
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
    """Says so of a fleet of this boot."""
    try:
        return abs(process_started_s(fleet.pid) - fleet.started_s) < 0.05
    except psutil.NoSuchProcess:
        return False


def _is_of_a_boot_before(fleet: RunningFleet) -> bool:
    return fleet.machine != "" and fleet.machine == this_machine() and is_of_another_boot(fleet.boot)


def is_of_another_boot(boot: str) -> bool:
    """Says so of a name of this machine's, where boots have names; containers share the first part of it."""
    here = this_boot()
    return bool(boot and here) and boot[:_BOOT_ID] != here[:_BOOT_ID]


def this_machine() -> str:
    """Names the machine among those that may share a folder: copies of one have the same id, and other names."""
    try:
        machine_id = Path("/etc/machine-id").read_text().strip()
    except OSError:
        return ""
    return f"{platform.node()}/{machine_id}" if machine_id else ""


def this_boot() -> str:
    """Names the machine's boot, and the namespace that process ids are of; "" where the system does not say."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}-{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def process_started_s(pid: int | None = None) -> float:
    """Returns when the process, or this one, was started, in seconds after the boot. Raises psutil.NoSuchProcess."""
    booted_s = psutil.boot_time()  # first: psutil 6 adds what it was asked last, however old
    return psutil.Process(pid).create_time() - booted_s
