"""Says where the files that a fleet file names are."""

import os
from pathlib import Path

from pdmux_actor.models.gguf_files.layout_folder import is_gguf


def resolve_source(source: str, base: Path) -> str:
    """A folder or GGUF file is written with ./, ../, ~ or /, or is beside the fleet file; anything else is an id of
    Hugging Face.
    """
    is_path = source.startswith(("./", "../", "/", "~")) or source in (".", "..")
    if is_path or os.path.isdir(base / source) or (is_gguf(source) and os.path.isfile(base / source)):
        return absolute(source, base)
    return source


def absolute(file: str, base: Path) -> str:
    """A ~name that is no user of this machine stays as it is written."""
    return os.path.normpath(base / os.path.expanduser(file))
