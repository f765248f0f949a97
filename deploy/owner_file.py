"""Writes small files that several commands of one user read and change."""

import os
from pathlib import Path


def replace_for_owner(path: Path, content: bytes) -> None:
    """Writes the file in one step, for its owner only: who reads it meanwhile sees the old file or the new one. Raises
    OSError.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
