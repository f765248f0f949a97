"""Lets Ray Serve do without pandas, in commands and in every worker of a cluster that `muxfleet up` starts.

Serve imports pandas only to encode data frames, which none of our deployments returns, and does without it where it is
not installed. It costs each process of a fleet 65 MB of resident memory and half a second of start.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _NotWhileServeIsImported(MetaPathFinder):
    """Whoever imports pandas at another time gets it."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname == "pandas" and _is_being_imported("ray.serve"):
            raise ModuleNotFoundError("left out for Ray Serve, see muxfleet.lean_serve", name=fullname)


def leave_pandas_out() -> None:
    """Call before Serve is imported. Ray's workers do, by Ray's setup hook (`deploy.local.ray_environment`)."""
    if not any(isinstance(finder, _NotWhileServeIsImported) for finder in sys.meta_path):
        sys.meta_path.insert(0, _NotWhileServeIsImported())


def _is_being_imported(name: str) -> bool:
    spec: ModuleSpec | None = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))
