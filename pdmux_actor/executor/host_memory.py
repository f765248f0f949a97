"""Works out how much host memory a unit has, and how much of it is left."""

from pathlib import Path

import psutil

from pdmux_actor.errors import HostMemoryShort

# Whoever else is on the machine, and the page cache that checkpoints are read through, need some, too. Ray ends
# processes when 95 % are in use.
_KEPT_FREE_SHARE = 0.2
_CGROUP = Path("/sys/fs/cgroup")


def host_memory_bytes(cgroup: Path = _CGROUP) -> int:
    """Returns the memory of the machine, or of the container that this process runs in."""
    return min(psutil.virtual_memory().total, _limit_bytes(cgroup) or psutil.virtual_memory().total)


def spare_host_bytes(cgroup: Path = _CGROUP) -> int:
    """Returns what weights that sleep may take so that enough stays free; at most 0 when there is too little
    already.
    """
    available_bytes = psutil.virtual_memory().available
    limit_bytes = _limit_bytes(cgroup)
    if limit_bytes is not None:
        available_bytes = min(available_bytes, limit_bytes - _used_bytes(cgroup))
    return available_bytes - int(_KEPT_FREE_SHARE * host_memory_bytes(cgroup))


def check_host_room(model: str, needed_bytes: int, admitted_bytes: int) -> None:
    """Raises HostMemoryShort."""
    if needed_bytes > admitted_bytes:
        raise HostMemoryShort(model=model, needed_bytes=needed_bytes, admitted_bytes=admitted_bytes)


def _limit_bytes(cgroup: Path) -> int | None:
    """Of cgroup v2, as containers see their own; None: there is none."""
    try:
        return int((cgroup / "memory.max").read_text())
    except (OSError, ValueError):  # not there, or "max"
        return None


def _used_bytes(cgroup: Path) -> int:
    """Without files that the kernel drops when it needs the memory."""
    try:
        statistics = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        return int((cgroup / "memory.current").read_text()) - int(statistics.get("inactive_file", 0))
    except (OSError, ValueError):
        return 0
