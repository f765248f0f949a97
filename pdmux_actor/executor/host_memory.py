"""Works out how much host memory a unit has, and how much of it is left."""

import ctypes
import sys
from pathlib import Path

import psutil

from pdmux_actor.errors import HostMemoryShort

# Whoever else is on the machine, and the page cache that checkpoints are read through, need some, too. Ray ends
# processes when 95 % are in use.
_KEPT_FREE_SHARE = 0.2
_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None  # glibc's
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


def host_memory_bytes(cgroups: Path = _CGROUPS, own: Path = _OWN_CGROUP) -> int:
    """Returns the memory of the machine, or of the container or service that this process runs in."""
    return min([psutil.virtual_memory().total, *_limits_bytes(cgroups, own).values()])


def free_host_bytes(cgroups: Path = _CGROUPS, own: Path = _OWN_CGROUP) -> int:
    """Returns what this process may still take before the kernel ends it or others; at most 0 when there is too little
    already.
    """
    left = (limit_bytes - _used_bytes(cgroup) for cgroup, limit_bytes in _limits_bytes(cgroups, own).items())
    return min([psutil.virtual_memory().available, *left])


def give_back_freed_memory() -> None:
    """Gives the system what was freed: the C library keeps the many pieces of a model's weights for others, which are
    of another size.
    """
    if _TRIM is not None:
        _TRIM(0)


def spare_host_bytes(cgroups: Path = _CGROUPS, own: Path = _OWN_CGROUP) -> int:
    """Returns what weights that sleep may take so that enough stays free; at most 0 when there is too little
    already.
    """
    return free_host_bytes(cgroups, own) - int(_KEPT_FREE_SHARE * host_memory_bytes(cgroups, own))


def check_host_room(model: str, needed_bytes: int, admitted_bytes: int) -> None:
    """Raises HostMemoryShort."""
    if needed_bytes > admitted_bytes:
        raise HostMemoryShort(model=model, needed_bytes=needed_bytes, admitted_bytes=admitted_bytes)


def _limits_bytes(cgroups: Path, own: Path) -> dict[Path, int]:
    """Of cgroups v2 that this process is in and that have one: a container sees its own as the root, a service is in
    one within others.
    """
    found = {}
    for cgroup in _with_parents(cgroups, own):
        try:
            found[cgroup] = int((cgroup / "memory.max").read_text())
        except (OSError, ValueError):  # not there, or "max"
            continue
    return found


def _with_parents(cgroups: Path, own: Path) -> tuple[Path, ...]:
    """Of a container that keeps the host's names its own is not where it says, but the root."""
    try:
        names = [line[3:] for line in own.read_text().splitlines() if line.startswith("0::/")]
    except OSError:
        names = []
    paths = [Path(name.lstrip("/")) for name in names] or [Path()]
    return tuple(cgroups / path for path in (paths[0], *paths[0].parents))


def _used_bytes(cgroup: Path) -> int:
    """Without files that the kernel drops when it needs the memory."""
    try:
        statistics = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        return int((cgroup / "memory.current").read_text()) - int(statistics.get("inactive_file", 0))
    except (OSError, ValueError):
        return 0
