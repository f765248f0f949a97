"""Writes the file of a result."""

import errno
import os
from pathlib import Path

# The folder is not ours to write into, or the file is one that is mounted.
_ONLY_IN_PLACE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY})


def write_whole(path: Path, content: bytes) -> None:
    """Writes the file in one step where its folder admits that: on a full disk the old one stays. Follows links, keeps
    the old one's mode, and writes to pipes and devices as they are. Raises OSError.
    """
    there = Path(os.path.realpath(path))
    if there.exists() and not there.is_file():
        there.write_bytes(content)
        return
    beside = there.with_name(f".{there.name[:200]}.{os.getpid()}")
    try:
        beside.write_bytes(content)
        if there.exists():
            beside.chmod(there.stat().st_mode)
        beside.replace(there)
    except OSError as error:
        beside.unlink(missing_ok=True)
        if error.errno not in _ONLY_IN_PLACE:
            raise
        there.write_bytes(content)
