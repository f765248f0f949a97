"""Says where the files that a fleet file names are."""

import os
from pathlib import Path


def resolve_source(source: str, base: Path) -> str:
    """A folder is written with ./, ../, ~ or /, or exists beside the fleet file; anything else is a Hugging Face id."""
    if source.startswith(("./", "../", "/", "~")) or source in (".", "..") or os.path.isdir(base / source):
        return absolute(source, base)
    return source


def absolute(file: str, base: Path) -> str:
    """A ~name that is no user of this machine stays as it is written."""
    return os.path.normpath(base / os.path.expanduser(file))
