"""Folders in which local clusters have their sessions, and what was left of those whose command was killed."""

import os
import shutil
import tempfile
from pathlib import Path

import msgspec
import psutil

from deploy.local.running_fleets import is_of_another_boot, process_started_s, this_boot

_PREFIX = "muxfleet-"
_OWNER = "owner.json"


class _Owner(msgspec.Struct, frozen=True):
    boot: str
    pid: int
    started_s: float


def make_session_folder(parent: Path) -> Path:
    """Makes one for this process, which only its user can read. Raises OSError, and leaves none then."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    owner = _Owner(boot=this_boot(), pid=os.getpid(), started_s=process_started_s())
    try:
        (folder / _OWNER).write_bytes(msgspec.json.encode(owner))
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def remove_left_behind(parent: Path) -> None:
    """Removes folders of this user that no process uses any more. One of which nothing can be said stays."""
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            is_ours = folder.stat().st_uid == os.getuid()
            owner = msgspec.json.decode((folder / _OWNER).read_bytes(), type=_Owner)
        except (OSError, msgspec.DecodeError):  # another's, of another version, or just being made or removed
            continue
        if is_ours and not _may_live(owner) and not _is_used(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _may_live(owner: _Owner) -> bool:
    """Says so, too, of one in a container that shares the folder."""
    if owner.boot != this_boot():
        return not is_of_another_boot(owner.boot)
    try:
        return abs(process_started_s(owner.pid) - owner.started_s) < 0.05
    except psutil.NoSuchProcess:
        return False


def _is_used(folder: Path) -> bool:
    """Ray's processes name it, and may live for a while when the command that started them was killed."""
    found = psutil.process_iter(["cmdline"])
    return any(str(folder) in part for process in found for part in process.info["cmdline"] or ())
