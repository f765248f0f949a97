"""Takes the gateway's port for a fleet that starts here, and keeps it.

Serve listens there only when the fleet is nearly up, and its proxies let others listen beside them: of two fleets that
found the same port free, each would be asked for the other's models.
"""

import errno
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from deploy.environment import ray_address
from deploy.errors import PortRefused, PortTaken
from deploy.fleet_file.settings import FleetFile

_PORTS_TO_TRY = 50


@contextmanager
def gateway_port(fleet: FleetFile, *, asked: int | None, tell: Callable[[str], object]) -> Iterator[FleetFile]:
    """Yields the fleet at a port that no other fleet of this machine takes meanwhile: the one that was `asked` for on
    the command line; else the file's own, or the next that is free, which it does `tell`. Ports of a cluster that is
    there already are not this machine's to judge.

    Raises:
        PortTaken: the port asked for, or every port tried, is in use.
        PortRefused: this process may not listen there, or the address is not this machine's.
    """
    host, first = fleet.gateway.host, fleet.gateway.port if asked is None else asked
    if ray_address() is not None:
        yield at_port(fleet, first)
        return
    last = first if asked is not None else min(first + _PORTS_TO_TRY, 65535)
    with ExitStack() as claims:
        free = (port for port in range(first, last + 1) if _is_free(host, port) and _claim(port, claims))
        port = next(free, None)
        if port is None:
            raise PortTaken(host=host, port=first)
        if port != first:
            tell(f"port {first} is in use by another process; taking {port}")
        yield at_port(fleet, port)


def at_port(fleet: FleetFile, port: int) -> FleetFile:
    return fleet.model_copy(update={"gateway": fleet.gateway.model_copy(update={"port": port})})


def _claim(port: int, claims: ExitStack) -> bool:
    """A name that lasts as long as this process or `claims` and leaves no file behind; Linux alone has such."""
    if sys.platform != "linux":
        return True
    held = socket.socket(socket.AF_UNIX)
    try:
        held.bind(f"\0muxfleet-gateway-{port}")
    except OSError as error:
        held.close()
        if error.errno == errno.EADDRINUSE:
            return False
        raise
    claims.callback(held.close)
    return True


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise PortRefused(host=host, port=port, reason=error.strerror or str(error)) from error
        return True
