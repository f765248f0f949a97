"""Backends by the name that the fleet file uses: every file of the folder `entries` that declares a BACKEND."""

from collections.abc import Mapping
from types import MappingProxyType

from pdmux_actor.backends.entries.entry import BackendEntry
from traces.register import Register

BACKENDS = Register("pdmux_actor.backends.entries", "BACKEND", BackendEntry)
NAMED = tuple(name for name, backend in BACKENDS.items() if backend.stands_for is None)
"""Those that a fleet file can name."""
BY_KIND: Mapping[str, BackendEntry] = MappingProxyType(
    {kind: backend for backend in BACKENDS.values() for kind in backend.kinds.values()}
)
"""By what an engine process is started as."""


def backend_on(device: str, name: str) -> BackendEntry:
    """Returns the backend of this name, or what stands for it on the device."""
    stands_in = (b for b in BACKENDS.values() if b.stands_for == name and device in b.kinds)
    return next(stands_in, BACKENDS[name])
