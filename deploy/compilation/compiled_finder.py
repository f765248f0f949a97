"""Lets a process import compiled modules in place of their sources, if it is asked to."""

import logging
import sys
import sysconfig
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

from deploy.compilation.compiled_modules import compiled_folder
from deploy.environment import asks_for_compiled_modules

_LOG = logging.getLogger(__name__)


class CompiledFinder(MetaPathFinder):
    """Finds the modules that a folder has a library of; leaves all others to Python."""

    def __init__(self, folder: Path) -> None:
        suffix = str(sysconfig.get_config_var("EXT_SUFFIX"))
        self._files = {
            path.relative_to(folder).as_posix().removesuffix(suffix).replace("/", "."): path
            for path in folder.rglob(f"*{suffix}")
        }

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._files.get(fullname)
        return None if file is None else spec_from_file_location(fullname, file)


def prefer_compiled_modules() -> None:
    """Call before any of them is imported. Without what `muxfleet compile` makes, all runs as Python, and says so."""
    if not asks_for_compiled_modules() or any(isinstance(finder, CompiledFinder) for finder in sys.meta_path):
        return
    folder = compiled_folder()
    if folder.is_dir():
        sys.meta_path.insert(0, CompiledFinder(folder))
    else:
        _LOG.warning("MUXFLEET_COMPILED=1: nothing is compiled of this version; run `muxfleet compile` once")
