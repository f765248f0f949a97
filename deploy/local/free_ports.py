"""Finds ports of this machine on which nobody listens."""

import socket
from collections.abc import Sequence
from contextlib import ExitStack


def free_ports(count: int) -> Sequence[int]:
    """Returns different ones; another program may take them before they are used."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("", 0))
        return [one.getsockname()[1] for one in sockets]
