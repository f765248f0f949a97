"""Names the modules that may run compiled and where what was compiled of them is kept, and has a process import them in
place of their sources, if it is asked to.
"""

import hashlib
import logging
import sys
import sysconfig
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

from deploy.environment import asks_for_compiled_modules, cache_folder
from deploy.errors import OptionNotUsable

LIBRARY = "muxfleet_compiled"
_DIGEST_LENGTH = 24
_PACKAGES = ("traces", "profiler", "placement", "pdmux_actor", "router", "deploy")
# What a simulated step runs through. Left out: what is encoded or pickled, what registers search for, and classes that
# others derive from in Python.
_ROOMS = (
    "pdmux_actor/scheduling",
    "pdmux_actor/scheduling/policies",
    "pdmux_actor/kv",
    "router/admission",
    "router/routing",
)
_LEFT_OUT = frozenset(
    {
        "__init__.py",
        "chrome_trace.py",
        "decision.py",
        "demand_report.py",
        "dispatch_policy.py",
        "entry.py",
        "geometry.py",
        "output_constraint.py",
        "prefix_kv.py",
        "registry.py",
        "settings.py",
    }
)
_SINGLE = (
    "deploy/simulation/coming_requests.py",
    "deploy/simulation/engine.py",
    "deploy/simulation/event_queue.py",
    "deploy/simulation/fleet_run.py",
    "deploy/simulation/gateway.py",
    "deploy/simulation/units.py",
    "deploy/simulation/virtual_world.py",
    "pdmux_actor/engine.py",
    "pdmux_actor/executor/simulated.py",
    "profiler/bandwidth_sharing.py",
    "profiler/contention.py",
    "profiler/operator_costs.py",
    "profiler/roofline.py",
    "router/gateway_scheduler.py",
)


def sources_folder() -> Path:
    """Returns where the packages lie."""
    return Path(__file__).resolve().parents[2]


def package_sources() -> Sequence[Path]:
    """Returns all modules of the packages, below `sources_folder`."""
    folder = sources_folder()
    return [path.relative_to(folder) for name in _PACKAGES for path in sorted((folder / name).rglob("*.py"))]


def compiled_sources() -> Sequence[Path]:
    """Returns the modules that may run compiled, below `sources_folder`."""
    folder = sources_folder()
    in_rooms = [path.relative_to(folder) for room in _ROOMS for path in sorted((folder / room).glob("*.py"))]
    return [*[path for path in in_rooms if path.name not in _LEFT_OUT], *map(Path, _SINGLE)]


def compiled_folder() -> Path:
    """Returns where the libraries of these sources and this Python are kept, in the user's cache. Any change of any
    source names another folder: what is compiled relies on the types of what is not. Its parent is that of all sources
    that have lain where these lie.
    """
    python = f"{sys.version} {sysconfig.get_platform()}"
    place = hashlib.sha256(f"{python} {sources_folder()}".encode())
    sources = hashlib.sha256()
    for path in package_sources():
        sources.update(f"{path} ".encode())
        sources.update((sources_folder() / path).read_bytes())
    return all_compiled() / place.hexdigest()[:_DIGEST_LENGTH] / sources.hexdigest()[:_DIGEST_LENGTH]


def all_compiled() -> Path:
    """Returns the folder of whatever was compiled, of any version and installation."""
    return cache_folder() / "compiled"


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


def prefer_compiled_modules(*, by_default: bool = False) -> None:
    """Call before any of them is imported. Without what `muxfleet compile` makes, all runs as Python; who has asked for
    it is told so. `by_default`: also where the environment does not say.
    """
    asked = asks_for_compiled_modules()
    if not (by_default if asked is None else asked) or runs_compiled():
        return
    folder = None
    with suppress(OptionNotUsable, OSError):  # there is no such place, or it is somebody else's
        if all_compiled().is_dir() and (of_these := compiled_folder()).is_dir():
            folder = of_these
    if folder is not None:
        _load(folder)
    elif asked:
        _LOG.warning("MUXFLEET_COMPILED=1: nothing is compiled of this version; run `muxfleet compile` once")


def runs_compiled() -> bool:
    """Says whether this process has compiled modules in place of their sources."""
    return any(isinstance(finder, CompiledFinder) for finder in sys.meta_path)


def _load(folder: Path) -> None:
    finder = CompiledFinder(folder)
    sys.meta_path.insert(0, finder)
    try:
        import_module(f"{LIBRARY}__mypyc")  # all of the others' code
    except ImportError as error:  # it was compiled on a machine with a newer C library, and lies in a shared home
        sys.meta_path.remove(finder)
        _LOG.warning("runs as Python: %s; `muxfleet compile --clean`, then `muxfleet compile`", error)
