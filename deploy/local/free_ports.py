"""Finds ports of this machine on which nobody listens."""

import errno
import random
import socket
from collections.abc import Sequence

# Below the ports that Linux gives to whoever asks for any (32768 and above), as Ray's processes do by the dozen while a
# fleet starts: one of those is taken again before the fleet listens there. Between Ray's workers and Serve's replicas.
_PORTS = range(20_000, 30_000)


def free_ports(count: int, *, but: int = 0) -> Sequence[int]:
    """Returns different ones, none of them `but`; another program may take them before they are used.

    Raises:
        OSError: all are in use.
    """
    found: list[int] = []
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        if port != but and _is_free(port):
            found.append(port)
        if len(found) == count:
            return found
    raise OSError(errno.EADDRINUSE, f"fewer than {count} ports from {_PORTS.start} to {_PORTS.stop - 1} are free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True
