"""Binds the top-level names of muxfleet's packages to muxfleet's own folders, in a process that is muxfleet's.

The names are generic: a package of another distribution, or a file `deploy.py` in a user's folder, may bear one of
them. An entry point calls `claim` before it imports anything else of muxfleet: neither can stand in our place then.
"""

import importlib
import sys
from pathlib import Path

PACKAGES = ("traces", "profiler", "placement", "pdmux_actor", "router", "deploy")


def packages_folder() -> Path:
    """Returns where the packages lie: inside this one as pip installs it, beside it in the repository."""
    here = Path(__file__).resolve().parent
    return here if (here / PACKAGES[0]).is_dir() else here.parent


def claim() -> None:
    """Imports the packages from muxfleet's folder. What stands on `sys.path` later changes nothing: a package that is
    imported is found by its own path. Processes that this one spawns take its `sys.path`.

    Raises:
        ImportError: another package of one of the names is already imported.
    """
    folder = packages_folder()
    if sys.path[:1] != [str(folder)]:
        sys.path.insert(0, str(folder))
    for name in PACKAGES:
        module = importlib.import_module(name)
        if Path(module.__file__ or "").resolve().parent != folder / name:
            raise ImportError(
                f"{name!r} was imported from {module.__file__} before muxfleet's own; "
                "start muxfleet in a process of its own, not in one that uses that package",
                name=name,
            )
